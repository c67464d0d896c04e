"""Find the line that gave an option the very value that differs, and not an earlier one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from pytest_precision.probes.lines.explain.calls import short
from pytest_precision.probes.lines.explain.user_code import SetOtherwise
from pytest_precision.probes.lines.operations import UPDATES, CodeLine, OperationLog, Setting


class LastSet(NamedTuple):
    """An assignment that made an option differ, with what the reference has in its place.

    Attributes:
        setting: the assignment.
        instead: what the reference has, as text.
        restore: the last line that loads a checkpoint, if any.
        times: how often the line sets it before one update, where that is too often; else 0.
    """

    setting: Setting
    instead: str
    restore: Setting | None
    times: int = 0

    @property
    def line(self) -> CodeLine | None:
        """Return the source line that made the assignment."""
        return self.setting.line

    @property
    def other_line(self) -> None:
        """Return nothing: the reference's value may have been set by any line."""

    @property
    def name(self) -> str:
        """Return the option of a parameter group."""
        return self.setting.name

    @property
    def words(self) -> str:
        """Return words on the values of both sides, and on the last line that loads."""
        words = f"set to {self.setting.value}, in the reference it is {self.instead}"
        if self.times:
            words += f"; this line sets it {self.times} times before one update"
        if self.restore is None or self.restore.line is None:
            return words
        at = short(self.restore.line)
        return f"{words}; the last line that loads is {at}, by {self.restore.option}"


def last_set(
    telling: SetOtherwise,
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    digests: tuple[str, str],
) -> LastSet | None:
    """Return the last assignment of the value that differs before the update that reads it.

    None where both sides set it at one place, where it is told, or do not show which value it is.

    Args:
        telling: an assignment that shows that the option is set otherwise.
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        digests: of the candidate's and the reference's value.
    """
    ours, theirs = map(number_of, digests)
    if telling.when or telling.theirs is not None or ours is None or theirs is None:
        return None
    for log in candidate:
        updates = [place for place, s in enumerate(log.settings) if s.option == UPDATES]
        before = log.settings[: updates[-1]] if updates else log.settings
        same = [s for s in before if s.name == telling.name and s.value == repr(ours)]
        if same:
            restore = next(reversed(log.restores), None)
            times = 0 if restore else _times(same[-1], log, reference[0])
            return LastSet(same[-1], repr(theirs), restore, times)
    return None


def _times(setting: Setting, log: OperationLog, other: OperationLog) -> int:
    """Return how often a line sets an option before one update; 0 where it is not too often.

    That is more than once, where the reference sets the option less often at all of its lines.
    """
    by_line = _times_by_update(log, setting.name, setting.line)
    ours, theirs = (_times_by_update(each, setting.name) for each in (log, other))
    return next(
        (
            times
            for times, all_times, their_times in zip(by_line, ours, theirs, strict=False)
            if times > 1 and all_times > their_times
        ),
        0,
    )


def _times_by_update(log: OperationLog, name: str, line: CodeLine | None = None) -> list[int]:
    """Return how often an option is set before each update, by one line if given, or by any."""
    times = [0]
    for setting in log.settings:
        if setting.option == UPDATES:
            times.append(0)
        elif setting.name == name and line in (None, setting.line):
            times[-1] += 1
    return times[:-1]


def number_of(digest: str) -> float | None:
    """Return the number of one element in fp64 that a digest spells; None if it is none."""
    element, _, count = digest.removeprefix("=").partition("x")
    if not digest.startswith("=") or count != "1" or len(element) != 16:
        return None
    (number,) = struct.unpack("<d", bytes.fromhex(element))
    return float(number)
