"""Find the line that makes a schedule anew in a run that goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from pytest_precision.engine.kinds import RESTORED_KINDS
from pytest_precision.matrix.sequence import LOADS
from pytest_precision.probes.lines.explain.calls import short
from pytest_precision.probes.lines.explain.loop_calls import RATE_OPTIONS
from pytest_precision.probes.lines.operations import UPDATES, CodeLine, OperationLog, Setting


class MadeAnew(NamedTuple):
    """A count or setting of a schedule that a checkpoint does not replace.

    Attributes:
        name: of it.
        first_rate: the assignment of a rate where the schedule is made, if it sets one.
        restore: the last line that loads, if any.
    """

    name: str
    first_rate: Setting | None
    restore: Setting | None

    @property
    def line(self) -> CodeLine | None:
        """Return the line that makes the schedule, or else the last one that loads."""
        setting = self.first_rate or self.restore
        return None if setting is None else setting.line

    @property
    def other_line(self) -> None:
        """Return no line: the run that was not restarted has none that makes it again."""
        return None

    @property
    def words(self) -> str:
        """Return words on what has become of it."""
        if self.first_rate is None:
            return f"the saved value does not replace it up to this last line that loads{self._how}"
        words = "the saved value does not replace the one that this line makes"
        if self.restore is None or self.restore.line is None:
            return words
        return f"{words}; the last line that loads is {short(self.restore.line)}{self._how}"

    @property
    def _how(self) -> str:
        return "" if self.restore is None else f", by {self.restore.option}"


def made_anew(
    candidate: Sequence[OperationLog], kind: str, name: str, operation: str
) -> MadeAnew | None:
    """Return what a load has not replaced of a schedule; None where no line tells it.

    Args:
        candidate: the logs of its ranks.
        kind: of what differs first.
        name: of it.
        operation: of the sequence, after which it differs.
    """
    if kind not in RESTORED_KINDS or operation not in LOADS:
        return None
    for log in candidate:
        start = takewhile(lambda setting: setting.option != UPDATES, log.settings)
        rates = [s for s in start if s.option in RATE_OPTIONS and _is_by_schedule(s)]
        restore = next(reversed(log.restores), None)
        if rates or restore:
            return MadeAnew(name, rates[-1] if rates else None, restore)
    return None


def _is_by_schedule(setting: Setting) -> bool:
    """Return whether a schedule has set an option in `step`, which its constructor calls, too."""
    return setting.line is not None and setting.line.called.rpartition(".")[2] == UPDATES
