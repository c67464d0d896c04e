"""Find the line that makes parameter groups, where a weight is in another one or in none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain import worded
from pytest_precision.probes.lines.explain.last_set import number_of
from pytest_precision.probes.lines.operations import CodeLine, Holding, OperationLog, Setting

Sides = tuple[Sequence[OperationLog], Sequence[OperationLog]]
"""The logs of the candidate's ranks, and those of the reference's."""


class OtherGroups(NamedTuple):
    """The parameter groups of the candidate, where a weight is not in the group of the reference.

    Attributes:
        setting: that has made the group.
        words: which side has the weight where.
    """

    setting: Setting
    words: str

    @property
    def line(self) -> CodeLine | None:
        """Return the source line that made the groups."""
        return self.setting.line

    @property
    def other_line(self) -> None:
        """Return nothing: the groups of the reference may be made at this line, too."""

    @property
    def name(self) -> str:
        """Return what was set."""
        return "params of the optimizer"


def other_groups(
    sides: Sides, key: TensorKey, digests: tuple[str, str], root: Path, *, lacks: str
) -> Culprit | None:
    """Return the line that makes the candidate's groups, if a weight is in another or in none.

    Args:
        sides: the logs, where the candidate's have the weight.
        key: of the option of the weight that differs.
        digests: of the option on both sides, as a log has them.
        root: files are named relative to it.
        lacks: `candidate` or `reference`, if this side has the weight in no group; else empty.
    """
    candidate, reference = sides
    weight = Holding("param", key.owner)
    if not any(weight in log.left for log in candidate):
        return None
    if lacks:
        is_listed = lacks == "reference"
        is_own = is_listed and not any(weight in log.left for log in reference)
        words = _in_one(key.owner, is_listed=is_listed, is_own=is_own)
        setting = next(_first_settings(candidate, "lr"), None)
        kind = "extra" if is_listed else "missing"
    else:
        option = key.option or "lr"
        firsts = [[*_first_settings(logs, option)] for logs in sides]
        mine, expected = (Counter(setting.value for setting in side) for side in firsts)
        ours, theirs = (repr(number_of(digest)) for digest in digests)
        if mine != expected or not {ours, theirs} <= mine.keys():
            return None
        words = f"{key.owner} is in the group with {option} {ours} here, {theirs} in the reference"
        setting = next(setting for setting in firsts[0] if setting.value == ours)
        kind = "setting"
    if setting is None:
        return None
    return worded.of_user_code(OtherGroups(setting, words), kind, root, None, None)


def _in_one(parameter: str, *, is_listed: bool, is_own: bool) -> str:
    if is_own:
        return (
            f"{parameter} is a weight of its own here; no weight of the reference has this name, "
            "as where it is tied to another"
        )
    if is_listed:
        return f"{parameter} is in a group here, in none of the reference"
    return f"{parameter} is in no group here, in the reference it is in one"


def _first_settings(logs: Sequence[OperationLog], option: str) -> Iterator[Setting]:
    """Yield what lines of the user's have first set an option to, group by group of each rank."""
    for log in logs:
        owners = set()
        for setting in log.settings:
            by_user = setting.line is not None and setting.line.is_users
            if setting.option == option and by_user and setting.owner not in owners:
                owners.add(setting.owner)
                yield setting
