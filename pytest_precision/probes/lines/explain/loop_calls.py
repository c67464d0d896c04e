"""Find what a loop does with gradients and rates beside its operations, and one side does not.

It zeroes gradients, drops one, or moves a rate before the update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.user_code import SetOtherwise, made_by_both
from pytest_precision.probes.lines.operations import UPDATES, ZEROES, OperationLog, Setting

RATE_OPTIONS = ("lr", "initial_lr")
"""Options of a parameter group that a rate is shown by."""


def lacks_zeroing(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], wrong: Wrong
) -> SetOtherwise | None:
    """Return the reference's zeroing of gradients that a wrong sum of them lacks, if any."""
    if not wrong.call.operation.backward or wrong.call.base != "add":
        return None
    step = wrong.call.step
    for logs in zip(candidate, reference, strict=False):
        mine, theirs = (
            [s for s in log.settings if s.option == ZEROES and s.is_call] for log in logs
        )
        if len(mine) < len(theirs):
            return SetOtherwise(None, theirs[len(mine)], f" at step {step}" if step else "")
    return None


def dropped_gradient(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], wrong: Wrong
) -> SetOtherwise | None:
    """Return the line that drops a gradient between its backward and a wrong operation, if any.

    The reference drops it less often in this step, where a step begins with none.
    """
    ours, theirs = candidate[wrong.rank], reference[min(wrong.rank, len(reference) - 1)]
    calls = [call for call in wrong.calls if call.step == wrong.call.step]
    first = next((call.number for call in calls if call.operation.backward), None)
    left = Counter(setting.name for setting in theirs.settings if setting.drops_gradient)
    for setting in ours.settings:
        if not setting.drops_gradient:
            continue
        left[setting.name] -= 1
        within = first is not None and first < setting.before <= wrong.call.number
        if within and left[setting.name] < 0:
            return SetOtherwise(setting, None)
    return None


def zeroed_between(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], wrong: Wrong
) -> SetOtherwise | None:
    """Return the line that zeroes gradients between the backwards of a wrong update, if any.

    The reference does so less often before the update.
    """
    ours, theirs = candidate[wrong.rank], reference[min(wrong.rank, len(reference) - 1)]
    step = wrong.call.step
    backwards = [c.number for c in wrong.calls if c.operation.backward and c.step == step]
    zeroings = [_zeroings_before_update(log, step) for log in (ours, theirs)]
    if not backwards or len(zeroings[0]) <= len(zeroings[1]):
        return None
    within = (s for s in zeroings[0] if backwards[0] < s.before <= wrong.call.number)
    zeroing = next(within, None)
    return None if zeroing is None else SetOtherwise(zeroing, None)


def _zeroings_before_update(log: OperationLog, step: int) -> list[Setting]:
    """Return the calls that zero gradients between a step's start and its update."""
    starts = [end.operations for end in log.steps if end.step == step - 1]
    first = starts[0] if starts else 0
    updates = (s.before for s in log.settings if s.option == UPDATES and s.before > first)
    last = next(updates, len(log.operations))
    return [s for s in log.settings if s.option == ZEROES and first <= s.before < last]


def rate_moved_before(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], wrong: Wrong
) -> SetOtherwise | None:
    """Return the rate that one side moves before its update, the other after it, if any.

    Once both have done so it is the same, so that a step's end does not show it. It explains what
    is wrong within the update; a script that loads makes its optimizer there, which moves nothing.
    """
    ours = candidate[wrong.rank]
    first = next(call.number for call in wrong.calls if call.step == wrong.call.step)
    updates = [s.before for s in ours.settings if s.option == UPDATES and s.is_call]
    if ours.restores or not any(first <= before <= wrong.call.number for before in updates):
        return None
    moved = set_earlier(candidate, reference, lambda option: option in RATE_OPTIONS)
    moves = made_by_both([] if moved is None else [moved], candidate, reference)
    return next((move for move in moves if move.setting.before <= wrong.call.number), None)


def set_earlier(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    shows: Callable[[str], bool],
) -> SetOtherwise | None:
    """Return the first option that one run sets before an update and the other after it, if any.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        shows: whether the tensor that differs shows the option of this name.
    """
    for logs in zip(candidate, reference, strict=False):
        sides = (
            [s for s in log.settings if s.option == UPDATES or shows(s.option)] for log in logs
        )
        for mine, theirs in zip(*sides, strict=False):
            if (mine.name, mine.value) == (theirs.name, theirs.value):
                continue
            if mine.is_call == theirs.is_call:
                break
            if mine.is_call:
                return SetOtherwise(None, theirs, " before the update")
            return SetOtherwise(mine, None, " before the update")
    return None
