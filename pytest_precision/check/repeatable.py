"""Whether a candidate that differs from its reference agrees with a second run of itself."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.errors import SideFailed
from pytest_precision.parity.criteria import Criteria
from pytest_precision.parity.explain import when
from pytest_precision.parity.judge import judge


def unrepeatable(case: Case) -> str:
    """Run the candidate once more, and say how that run differs from the first.

    A race, memory that nobody initialised and an order that threads decide look like any other
    divergence in one run.

    Returns:
        The end of a first line; nothing if all bytes are the same, or if no second run can be made.
    """
    try:
        second = case.candidate_again()
    except SideFailed as failed:
        return f"; not repeatable: in a second run {failed.reason}"
    if second is None:
        return ""
    first = judge(second.trace, case.candidate.trace, Criteria.of(None)).first
    if first is None:
        return ""
    pair = first.pair
    return (
        f"; not repeatable: {pair.kind} of {pair.name} differs {when(pair.moment)} in a second run "
        "of the candidate"
    )
