"""Compare recordings as far as both go, where a rank of one of them has not finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.parity.verdict import Ruling
from pytest_precision.trace.recording import Recording


def cut_pair(candidate: Recording, reference: Recording) -> tuple[Recording, Recording]:
    """Return two recordings of as many steps, those that both have, if one was not finished.

    Raises:
        RecordingError: the last step of one of them was recorded in another way.
    """
    sides = candidate, reference
    if not any(side.endings for side in sides):
        return sides
    options = {
        (side.manifest.steps, side.manifest.every) for side in sides if side.manifest is not None
    }
    if len(options) > 1 and any(every > 1 for _, every in options):
        got = " and ".join(f"--steps={steps} --every={every}" for steps, every in sorted(options))
        advice = "record both with the same --steps and --every"
        raise RecordingError(expected_but_got("two recordings of the same steps", got, advice))
    steps = min(len(side.cell.operations) for side in sides)
    return candidate.until(steps), reference.until(steps)


def as_far_as_compared(ruling: Ruling, sides: Sequence[Recording]) -> Ruling:
    """Return a ruling that says until where was compared, and why; a pass is none then.

    Nothing is known of the steps that were not recorded, so that a pass would hide an ending.
    """
    endings = [f"in the {side.name}, {words}" for side in sides for words in side.endings]
    if not endings:
        return ruling
    steps = len(sides[0].cell.operations)
    compared = f"compared until step {steps}"
    if ruling.outcome == "pass":
        first, *others = endings
        return Ruling(
            outcome="error", reason=f"{first}; {compared}, where both agree", details=tuple(others)
        )
    lines = (*endings, compared)
    brief = ruling.brief and (*lines, *ruling.brief)
    return replace(ruling, details=(*lines, *ruling.details), brief=brief)
