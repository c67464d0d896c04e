"""Find what one side leaves alone: a tensor that the other writes, a weight in no group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain import worded
from pytest_precision.probes.lines.explain.calls import ReferenceLookup
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.operations import CodeLine, Holding, OperationLog, Setting


def written_by_reference(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    differing: str,
    digests: tuple[str, str],
) -> Culprit | None:
    """Return the reference's operation that writes a tensor which the candidate leaves as it was.

    The candidate runs nothing at its line.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        root: files are named relative to it.
        differing: kind and name of the tensor.
        digests: of the candidate's and the reference's, as a log has them.
    """
    operations = [operation for log in candidate for operation in log.operations]
    lines = {operation.line for operation in operations}
    if digests[0] in {value.digest for operation in operations for value in operation.results}:
        return None
    for call in reversed(ReferenceLookup(reference).makers.get(digests[1], [])):
        if call.line is not None and call.line.is_users and call.line not in lines:
            words = f"the reference writes {differing} here, a line that the candidate never runs"
            return worded.of_operation(call, ErrorKind("missing", words, call), root, rank=None)
    return None


class OutOfGroups(NamedTuple):
    """The parameter groups of the candidate, where one side lists a weight and the other does not.

    Attributes:
        setting: that has made the first group.
        parameter: the weight.
        is_listed: whether it is the candidate that lists it.
    """

    setting: Setting
    parameter: str
    is_listed: bool

    @property
    def line(self) -> CodeLine | None:
        """Return the source line that made the groups."""
        return self.setting.line

    @property
    def name(self) -> str:
        """Return what was set."""
        return "params of the optimizer"

    @property
    def words(self) -> str:
        """Return words on which side has the weight in a group."""
        if self.is_listed:
            return f"{self.parameter} is in a group here, in none of the reference"
        return f"{self.parameter} is in no group here, in the reference it is in one"


def out_of_groups(
    candidate: Sequence[OperationLog], parameter: str, root: Path, *, is_listed: bool
) -> Culprit | None:
    """Return the line that makes the candidate's groups, of a weight that one side alone lists.

    Args:
        candidate: the logs of its ranks, which have the weight.
        parameter: its name.
        root: files are named relative to it.
        is_listed: whether it is the candidate that lists it.
    """
    for log in candidate:
        groups = (s for s in log.settings if s.option == "lr" and s.line and s.line.is_users)
        setting = next(groups, None)
        if setting is not None and Holding("param", parameter) in log.left:
            suspect = OutOfGroups(setting, parameter, is_listed)
            kind = "extra" if is_listed else "missing"
            return worded.of_user_code(suspect, kind, root, None, None)
    return None
