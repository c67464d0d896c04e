"""Check that all ranks of both sides were given the same data; if not, no layout is to blame."""

from __future__ import annotations

from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.trace.data_log import DataLog, Given

ADVICE = (
    "microbatches(cell, step) must return those of all ranks and depend on the step alone: draw "
    "from torch.Generator().manual_seed(step)"
)
"""Advice for the author of a workload that does not always give the same data."""


def unlike_data(case: RecordedCase) -> str | None:
    """Return words on which ranks or runs of a check received unequal microbatches, or None."""
    ours, theirs = case.sides
    return other_data(ours.log(DataLog), theirs.log(DataLog), (ours.cell, theirs.cell))


def other_data(candidate: DataLog, reference: DataLog, cells: tuple[Cell, Cell]) -> str | None:
    """Return words on which ranks or runs received unequal microbatches; None if none is found.

    Args:
        candidate: what its ranks were given.
        reference: what the reference's ranks were given.
        cells: where the candidate and the reference ran.
    """
    for side, log in (("candidate", candidate), ("reference", reference)):
        words = _within(log)
        if words is not None:
            return f"{words} in the {side}"
    candidate_cell, reference_cell = cells
    if candidate_cell.extra != reference_cell.extra:
        return None  # data may depend on the axes of the user's own
    place = _first_other(candidate.digests[0], reference.digests[0])
    if place is None:
        return None
    mine, others = axes_of(candidate_cell), axes_of(reference_cell)
    apart = ", ".join(name for name in mine if mine[name] != others[name])
    cause = f", or does it depend on {apart}?" if apart else "?"
    return f"the workload gave other data in the second run, {place}: is it random{cause}"


def _within(log: DataLog) -> str | None:
    for rank, digests in enumerate(log.digests):
        place = _first_other(digests, log.digests[0])
        if place is not None:
            return f"the workload gave rank {rank} other data than rank 0 {place}"
    for rank, steps in enumerate(log.unsteady):
        if steps:
            return f"the workload gave rank {rank} other data for step {steps[0]} in a second call"
    return None


def _first_other(candidate_data: Given, reference_data: Given) -> str | None:
    """Return where the microbatches of two ranks or runs first differ; None if they do not."""
    for step in sorted(candidate_data.keys() & reference_data.keys()):
        for number, (a, b) in enumerate(
            zip(candidate_data[step], reference_data[step], strict=False)
        ):
            if a != b:
                return f"in microbatch {number} of {_named(step)}"
        if len(candidate_data[step]) != len(reference_data[step]):
            counts = (
                f"{len(candidate_data[step])} microbatches rather than {len(reference_data[step])}"
            )
            return f"in {_named(step)}, {counts}"
    return None


def _named(step: int) -> str:
    return f"step {step}" if step else "the evaluation"
