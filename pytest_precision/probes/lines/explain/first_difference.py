"""Leave out of operation logs what runs after the first difference: it explains nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_precision.probes.lines.operations import UPDATES, OperationLog


def up_to(
    step: int, sides: tuple[Sequence[OperationLog], Sequence[OperationLog]], kind: str = ""
) -> tuple[list[OperationLog], list[OperationLog]]:
    """Return the logs of both sides up to the end of a train step, where they say where that is.

    Args:
        step: the step.
        sides: the logs of the candidate's ranks and of the reference's.
        kind: of what differs first. A mode of the model is shown as the next update finds it.
    """
    ours, theirs = ([_cut(log, step, next_update=kind == "flag") for log in logs] for logs in sides)
    return ours, theirs


def before_updates(
    sides: tuple[Sequence[OperationLog], Sequence[OperationLog]],
) -> tuple[list[OperationLog], list[OperationLog]]:
    """Return the logs of both sides up to the first update of weights."""
    ours, theirs = (
        [_cut_at(log, log.first_update, log.first_update) for log in logs] for logs in sides
    )
    return ours, theirs


def _cut(log: OperationLog, step: int, *, next_update: bool) -> OperationLog:
    end = next((end.operations for end in log.steps if end.step == max(step, 1)), None)
    if end is None or log.steps[-1].step <= step:
        return log
    updates = (s.before for s in log.settings if s.option == UPDATES and s.before >= end)
    return _cut_at(log, end, next(updates, end) if next_update else end)


def _cut_at(log: OperationLog, end: int, last: int) -> OperationLog:
    """Return a log up to an operation, with its settings up to a later one or the same."""
    return replace(
        log,
        operations=log.operations[:end],
        settings=[setting for setting in log.settings if setting.before < last],
        entries=[entry for entry in log.entries if entry.operations[1] <= end],
        steps=[step_end for step_end in log.steps if step_end.operations <= end],
    )
