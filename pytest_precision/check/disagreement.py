"""Explain why a check fails: which tensor differs first, how, and by which line of code."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_precision.check.case import Case
from pytest_precision.check.proposal_lines import proposal_lines
from pytest_precision.errors import SideFailed
from pytest_precision.parity.compare.divergences import Finding, differs
from pytest_precision.parity.explain import curves, required_tolerance, spread, wording
from pytest_precision.parity.explain.diagnosis import Diagnosis, by_rule, diagnose
from pytest_precision.parity.explain.locate import histogram_of, locate, what_differs
from pytest_precision.parity.explain.unlike import number_lines
from pytest_precision.parity.self_checks.contradictions import (
    contradiction_lines,
    identities_in_runs,
)
from pytest_precision.parity.self_checks.oracle_findings import (
    breach_lines,
    gradient_lines,
    wrong_alone,
)
from pytest_precision.parity.verdict import Ruling
from pytest_precision.recorders.variant import Variant

PARTITIONED = (
    "the optimizer has tensors that no module holds; if each rank updates a part of its own, as in "
    "ZeRO, give record(locate=function) to say what lies in it; pytest_precision.recipes has the "
    "function for DeepSpeed and Megatron-core"
)


def disagreement(case: Case, first: Finding) -> Ruling:
    """Return a failed outcome that describes the difference `first` and names the code at fault.

    Args:
        case: both sides, as they were compared.
        first: the first pair of tensors that violates its criterion.

    Raises:
        SideFailed: the steps around it are recorded again, and a side failed in that.
    """
    step = first.pair.moment.step
    closer = case.around(step)
    finding = closer.judgement.first
    if finding is None or finding.pair.moment.step != step:
        unlike = f"not repeatable: step {step} differed, but not in a second run"
        return Ruling(outcome="fail", reason=unlike)
    diagnosis = by_rule(diagnose(closer.judgement), wrong_alone(case))
    named = case.culprit(finding)
    note = (named.note,) if named.note else ()
    figures = {
        "spread": spread.columns(closer.judgement),
        "histogram": histogram_of(diagnosis.finding),
        "needed": required_tolerance.needed(closer),
        "identities": identities_in_runs(closer),
    }
    return Ruling(
        outcome="fail",
        reason=wording.headline(diagnosis, closer.judgement) + _repeat_words(closer),
        details=(*note, *named.nearest, *_detail_lines(case, closer, diagnosis)),
        divergence=locate(diagnosis),
        culprit=named.culprit,
        brief=(
            *note,
            *_notes(case, closer, diagnosis.finding),
            "",
            *spread.rows(closer.judgement, spread.NARROW_COLUMNS),
        ),
        figures={name: figure for name, figure in figures.items() if figure is not None},
    )


def _detail_lines(case: Case, closer: Case, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return lines on a difference: statistics, explanation, and which kinds and steps differ."""
    return (
        *wording.name_lines(diagnosis.finding, closer.judgement, *case.sides),
        *wording.statistics_lines(diagnosis.finding),
        *wording.likewise_lines(diagnosis),
        *number_lines(diagnosis.finding, closer.judgement),
        *wording.swap_lines(diagnosis.finding, *case.sides),
        *_notes(case, closer, diagnosis.finding),
        *curves.lost_lines(*case.sides),
        *contradiction_lines(closer),
        *(line for side in case.sides for line in breach_lines(side, case.terms.exempt)),
        *(line for s in case.sides for line in gradient_lines(s, case.terms.exempt)),
        "",
        *spread.table(closer.judgement),
        "",
        *required_tolerance.table(closer.judgement),
        *proposal_lines(closer, diagnosis),
        "",
    )


def _notes(case: Case, closer: Case, finding: Finding) -> Iterator[str]:
    """Yield advice on the training loop's mistakes, and on how to record missing values and names.

    Values are missing where only digests were kept; names, where no module holds a tensor.
    """
    if finding.problem == "values" and finding.difference is None:
        step = finding.pair.moment.step
        manifests = [side.manifest for side in case.sides if side.manifest is not None]
        yield f"Digests alone were kept of step {step}; to see elements, record again:"
        yield from (
            f"  {manifest.again(str(step))}" for manifest in manifests if not manifest.is_imported
        )
    for side in closer.sides:
        unnamed = "unnamed" in side.trace.header.unobservable
        if unnamed and (finding.problem, finding.faulty_side) == ("replicas", side.name):
            yield f"In the {side.name}: {PARTITIONED}"
        yield from (f"In the {side.name}: {words}" for words in side.trace.header.violations)


def _repeat_words(case: Case) -> str:
    """Run a failing candidate again; return words on how its two runs differ, or an empty text.

    A race, memory that nobody initialised and an order that threads decide look like any other
    divergence in one run.

    Returns:
        The end of a first line; nothing if all bytes are the same, or if no second run can be made.
    """
    if case.again is None:
        return ""
    try:
        # Nobody judges the second run, of which only the bytes are compared.
        again = case.again.ours(case.window, Variant(gradients=False, updates=False))
        finding = differs(again, case.candidate)
    except SideFailed as failed:
        return f"; not repeatable: in a second run {failed.reason}"
    if finding is None:
        return ""
    return f"; not repeatable: {what_differs(finding)} in a second run of the candidate"
