"""Say why no line is named where both runs' operation logs show none at fault."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.parity.explain.lines.found import (
    OPTIONS_ACT_IN,
    cut_of,
    hold_other_pieces,
)
from pytest_precision.trace.operations import OperationLog


def unnamed(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], operation: str = "train"
) -> str:
    """Return a sentence on why no operation of the candidate is named as the error's cause.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        operation: of the sequence, after which the sides differ first.
    """
    if hold_other_pieces(candidate, reference):
        return "No line is named: the sides hold other pieces of the tensors"
    cut = cut_of(reference)
    if cut:
        return (
            f"No line is named: the reference's log ends at the limit of {cut} operations, and "
            "what the candidate makes later cannot be held against it"
        )
    cut = cut_of(candidate)
    if cut:
        return f"No line is named: the first {cut} operations made values that the reference has"
    if operation not in OPTIONS_ACT_IN:
        return (
            f"No line is named: every operation of the {operation} made values that the reference "
            "has, and a value that it drops or leaves out shows in no operation"
        )
    return "No line is named: every operation made values that the reference has"
