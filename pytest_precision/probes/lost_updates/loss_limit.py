"""Hold the candidate to the share of its updates that rounding may lose."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate, unproven
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.lost_updates import curves


@gate
def lost_updates(case: Case) -> Ruling | None:
    """Fail the check if rounding loses more of the candidate's updates than the test allows."""
    limit = case.terms.max_lost_updates
    if limit is None:
        return None
    unknown = curves.unmeasured(case.candidate)
    if unknown is not None:
        return unproven(f"{unknown}; leave max_lost_updates out")
    lost = curves.beyond(case.candidate, limit)
    return None if lost is None else failed(lost, curves.lost_lines(*case.sides))
