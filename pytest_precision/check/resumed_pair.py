"""Compare a run that was resumed from a checkpoint with one that was not interrupted."""

from __future__ import annotations

from dataclasses import replace

from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.trace.moment import INIT, STATE
from pytest_precision.trace.recording import Recording


def resumed_pair(
    candidate: Recording, reference: Recording, step: int
) -> tuple[Recording, Recording]:
    """Return two recordings as of the same steps: the reference's from the one that is resumed.

    The state before them is the one that the step before has left, of which a start shows a part.

    Args:
        candidate: the run that was resumed.
        reference: the run that was not interrupted.
        step: of the reference, which the candidate's first one must agree with.

    Raises:
        RecordingError: the reference has no such step, or does not show the state before it.
    """
    steps = len(reference.cell.operations)
    expected = f"--from of a step from 1 to {steps}, those in {reference.trace.folder}"
    if step > steps:
        raise RecordingError(expected_but_got(expected, str(step)))
    if (manifest := reference.manifest) is not None and manifest.every > 1:
        raise RecordingError(
            expected_but_got(
                "a reference with the tensors of each step",
                f"--every={manifest.every} in {reference.trace.folder}",
                "record it without --every",
            )
        )
    before = (moment for moment in reference.trace.moments if moment.phase == STATE)
    start = next(moment for moment in before if moment.step == step - 1)
    kinds = candidate.trace.kinds_at(INIT) & reference.trace.kinds_at(start)
    cell = reference.cell.replace(sequence=f"train{steps - step + 1}")
    later = replace(reference, cell=cell, trace=reference.trace.later(step, kinds))
    return replace(candidate, trace=candidate.trace.later(1, kinds)), later
