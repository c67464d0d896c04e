"""Say why no line is named where both runs' operation logs show none at fault."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.parity.explain.lines.calls import ReferenceLookup, SingleCall
from pytest_precision.parity.explain.lines.cut_logs import cut_of
from pytest_precision.parity.explain.lines.found import OPTIONS_ACT_IN
from pytest_precision.parity.explain.lines.pieces import hold_other_pieces
from pytest_precision.trace.operations import OperationLog


def unnamed(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    operation: str = "train",
    differing: str = "",
    digests: tuple[str, str] = ("", ""),
) -> str:
    """Return a sentence on why no operation of the candidate is named as the error's cause.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        operation: of the sequence, after which the sides differ first.
        differing: kind and name of the tensor that differs first.
        digests: of the candidate's and the reference's, as a log has them; empty where not known.
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
    elsewhere = _made_elsewhere(ReferenceLookup(reference), differing, *digests)
    return elsewhere or "No line is named: every operation made values that the reference has"


def _made_elsewhere(lookup: ReferenceLookup, differing: str, ours: str, theirs: str) -> str:
    """Return in words where the reference has the candidate's tensor, and where it made its own."""
    makers, expected = (_makers(lookup, digest) for digest in (ours, theirs))
    if not makers:
        return ""
    maker = makers[0]
    step = f" at step {maker.step}" if maker.step else ""
    words = (
        f"No line is named: the {differing} of the candidate is a value that the reference has "
        f"elsewhere, made by {maker.operation.name}{maker.at}{step}"
    )
    if not expected:
        return words
    return f"{words}; its own is made by {expected[-1].operation.name}{expected[-1].at}"


def _makers(lookup: ReferenceLookup, digest: str) -> list[SingleCall]:
    return lookup.makers.get(digest, []) if digest else []
