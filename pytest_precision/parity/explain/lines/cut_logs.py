"""Tell what a log that ends at its limit cannot show."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.parity.explain.lines.calls import ReferenceLookup, is_common
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.trace.operations import OperationLog


def cut_of(logs: Sequence[OperationLog]) -> int:
    """Return after how many operations the shortest log was cut off; 0 if all logs are complete."""
    return min((log.cut for log in logs if log.cut), default=0)


def is_beyond(wrong: Wrong, lookup: ReferenceLookup, cut: int) -> bool:
    """Return whether the reference, whose log was cut, may run an operation after the log's end.

    That is so of an operation as late as its end, and of one that reads what the reference has
    made and not yet read: sides that need other numbers of operations get there sooner.

    Args:
        wrong: an operation of the candidate.
        lookup: values of the reference.
        cut: where its log ends; 0 if it is whole.
    """
    if not cut:
        return False
    telling = [value for value in wrong.call.read if value in lookup and not is_common(value)]
    unread = any(not lookup.readers[value.digest] for value in telling)
    return unread or wrong.call.number >= cut
