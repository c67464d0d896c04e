"""Propose a tolerance under which a failed check would pass, and try it before printing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_precision.check.case import Case
from pytest_precision.errors import SideFailed
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.parity.explain.diagnosis import Diagnosis
from pytest_precision.parity.self_checks.tolerance import proves_nothing
from pytest_precision.probes.proposals import required_tolerance
from pytest_precision.probes.proposals.proposal import LEFT_OUT, proposed
from pytest_precision.probes.proposals.tensor_needs import ComparedRun
from pytest_precision.recorders.variant import Variant

ROUNDING = ("", "rounded")
"""Kinds of errors that rounding may be; any other one has a cause that no bound is for."""

OF_THIS_START = "They were made from this run alone: try them on other data."
OF_ANOTHER_START = "They hold for other weights and data, too."


def proposes(case: Case, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the table of tolerances that would pass, and the proposal.

    Args:
        case: with values of both sides.
        diagnosis: what the first divergence looks like.
    """
    yield from required_tolerance.required_lines(case.judgement)
    yield from proposal_lines(case, diagnosis)


def proposal_lines(case: Case, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield lines that propose a `criterion=` and say on which data it was tried, or why not.

    Args:
        case: with values of both sides.
        diagnosis: what the first divergence looks like.
    """
    if diagnosis.error not in ROUNDING:
        if diagnosis.has_pattern:
            yield f"No criterion is proposed: {diagnosis.signature} is no rounding."
        return
    criteria = _proved_criteria([case], None)
    tried = OF_THIS_START
    try:
        # Others are recorded only where there may be something to propose.
        other_case = None if isinstance(criteria, str) else case.otherwise_started()
        if other_case is not None and other_case.judgement.observations:
            criteria = _proved_criteria([case, other_case], _noise(case))
            tried = OF_ANOTHER_START
    except SideFailed as failed:
        tried = f"From another start they were not tried: {failed.reason}"
    if isinstance(criteria, str):
        yield from filter(None, (criteria,))
        return
    criteria = {**criteria, **_left_out_by_the_test(case)}
    calls = {key: criterion.call for key, criterion in criteria.items()}
    yield f"If the cause is known and meant, with room for other data: {case.terms.write(calls)}"
    yield tried


def _noise(case: Case) -> ComparedRun:
    assert case.again is not None
    noisy_recording = case.again.theirs(case.window, Variant(noise=1, updates=False))
    reference = case.reference.trace
    return ComparedRun(judge(noisy_recording.trace, reference, Criteria.of(None)), reference)


def _proved_criteria(cases: list[Case], noise: ComparedRun | None) -> Mapping[str, Criterion] | str:
    """Return tolerances that all `cases` satisfy but arbitrary values do not, or why none exist."""
    runs = [ComparedRun(case.judgement, case.reference.trace) for case in cases]
    refused = ""
    for floors in (True, False):
        criteria = proposed(runs, cases[0].unit, noise, floors=floors)
        if criteria is None:
            return ""
        criteria, refused = _without_freedom(cases[0], criteria)
        if not refused and all(_holds(case, criteria) for case in cases):
            return criteria
    return refused and f"No criterion is proposed: {refused}"


def _without_freedom(
    case: Case, criteria: dict[str, Criterion]
) -> tuple[dict[str, Criterion], str]:
    """Exempt tensors whose tolerance any value satisfies; report a whole kind's in words."""
    candidate, reference = (side.trace for side in case.sides)
    for freedom in proves_nothing(candidate, reference, Criteria.of(criteria), case.compared):
        if criteria.get(freedom.kind) == freedom.tolerance:
            return criteria, freedom.words
        criteria = {
            key: LEFT_OUT
            if key.startswith(f"{freedom.kind}:") and bound == freedom.tolerance
            else bound
            for key, bound in criteria.items()
        }
    return criteria, ""


def _holds(case: Case, criteria: Mapping[str, Criterion]) -> bool:
    candidate_trace, reference_trace = (side.trace for side in case.sides)
    proposal = Criteria.of({**criteria, **_left_out_by_the_test(case)})
    return judge(candidate_trace, reference_trace, proposal).first is None


def _left_out_by_the_test(case: Case) -> dict[str, Criterion]:
    """Return the test's criteria that leave out tensors, to repeat them in a proposal."""
    rules = case.terms.criteria.rules
    return {rule.key: rule.criterion for rule in rules if rule.criterion.left_out}
