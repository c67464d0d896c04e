"""Unnamed: which operations cannot be blamed, since a log ends at its limit, and what is said."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.parity.explain.lines.calls import is_common
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.parity.explain.lines.known import Known
from pytest_precision.parity.explain.lines.other_pieces import hold_other_pieces
from pytest_precision.trace.operations import OperationLog


def cut_of(logs: Sequence[OperationLog]) -> int:
    """Return the limit at which a log ends before its run does; 0 where all are whole."""
    return min((log.cut for log in logs if log.cut), default=0)


def is_beyond(wrong: Wrong, known: Known, cut: int) -> bool:
    """Return whether the reference may do the same after its log has ended.

    That is so of an operation as late as its end, and of one that reads what the reference has
    made and not yet read: sides that need other numbers of operations get there sooner.

    Args:
        wrong: an operation of the candidate.
        known: values of the reference.
        cut: where its log ends; 0 if it is whole.
    """
    if not cut:
        return False
    telling = [one for one in wrong.call.read if one in known and not is_common(one)]
    unread = any(not known.readers[one.digest] for one in telling)
    return unread or wrong.call.number >= cut


def unnamed(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> str:
    """Say why no operation of the candidate is to blame."""
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
    return "No line is named: every operation made values that the reference has"
