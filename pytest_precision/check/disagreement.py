"""Explain why a check fails: which tensor differs first, how, and by which line of code."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_precision.check.case import Case
from pytest_precision.errors import SideFailed, expected_but_got
from pytest_precision.matrix.ways_in import LAYOUT
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import differs
from pytest_precision.parity.explain import spread, wording
from pytest_precision.parity.explain.diagnosis import Blame, Diagnosis, by_rule, diagnose
from pytest_precision.parity.explain.locate import divergence_of, histogram_of, what_differs
from pytest_precision.parity.explain.unlike import (
    clip_lines,
    number_lines,
    other_weights,
    sum_of_grad_lines,
)
from pytest_precision.parity.verdict import Ruling
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import INIT

PARTITIONED = (
    "If each rank updates a part of its own, as in ZeRO, say which part by "
    "record(model, locate=function) (docs/how-to/sharded-optimizer.md has it in 15 lines); "
    "pytest_precision.recipes has the function for DeepSpeed and Megatron-core.",
    "If all ranks should hold the same values of it, they do not: that is the defect.",
)
"""Advice where ranks hold other values of a tensor that no module holds."""

REDUCED_IN_COPIES = (
    "Nobody has reduced it, or what the optimizers read is not the sum of the ranks' gradients: if "
    "that is meant, declare reduced_grad=unchecked(reason=...); final_grad has what they read."
)
"""Advice where ranks hold other gradients after the reduction."""

SHARDED_BY_HAND = (
    "If each rank holds a shard of it, as in tensor parallelism that is written by hand, say which "
    "by record(model, locate=function): docs/how-to/sharded-optimizer.md"
)
"""Advice where ranks of a script begin with other weights of one name."""

MASTERS_BY_HAND = (
    "If the optimizer updates copies of its own, such as fp32 masters, name each by "
    "record(model, locate=function), as [(name, shape, 0, number of elements)]: "
    "docs/how-to/sharded-optimizer.md"
)
"""Advice where a script updates tensors that no module holds, and the other side weights."""


def disagreement(case: Case, first: Finding) -> Ruling:
    """Return a failed outcome that describes the difference `first` and names the code at fault.

    Args:
        case: both sides, as they were compared.
        first: the first pair of tensors that violates its criterion.

    Raises:
        SideFailed: the steps around it are recorded again, and a side failed in that.
    """
    if _in_no_module(case, first):
        tensor = f"the {first.faulty_side}'s {first.pair.name}, which no module has"
        words = expected_but_got(
            "to be told which part of the model each rank's optimizer holds",
            f"other values on each rank of {tensor}",
        )
        return Ruling(outcome="error", reason=words, details=PARTITIONED)
    step = first.pair.moment.step
    closer = case.around(step)
    finding = closer.judgement.first
    if finding is None or finding.pair.moment.step != step:
        unlike = f"not repeatable: step {step} differed, but not in a second run"
        return Ruling(outcome="fail", reason=unlike)
    diagnosis = by_rule(diagnose(closer.judgement), _first_blame(case))
    named = case.culprit(finding)
    note = (named.note,) if named.note else ()
    explained = (*_broken_rules(closer), *_lines_of_judgements("explains", closer, diagnosis))
    figures = {
        "spread": spread.spread_figures(closer.judgement),
        "histogram": histogram_of(diagnosis.finding),
        **closer.figures_of_values(),
    }
    return Ruling(
        outcome="fail",
        reason=wording.headline(diagnosis, closer.judgement) + _repeat_words(closer),
        details=(*note, *named.nearest, *_detail_lines(case, closer, diagnosis)),
        divergence=divergence_of(diagnosis),
        culprit=named.culprit,
        explained=explained,
        brief=(
            *note,
            *_notes(case, closer, diagnosis.finding),
            "",
            *spread.rows(closer.judgement, spread.NARROW_COLUMNS),
        ),
        figures={name: figure for name, figure in figures.items() if figure is not None},
    )


def _in_no_module(case: Case, finding: Finding) -> bool:
    """Return whether ranks disagree about a tensor that is named by its place in an optimizer."""
    sides = (side for side in case.sides if side.name == finding.faulty_side)
    return finding.problem in ("replicas", "pieces") and any(
        "unnamed" in side.trace.header.unobservable
        and finding.pair.name not in side.trace.dtypes().get("used_param", {})
        for side in sides
    )


def _detail_lines(case: Case, closer_case: Case, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return lines on a difference: statistics, advice, and which kinds and steps differ."""
    return (
        *wording.name_lines(diagnosis.finding, closer_case.judgement, *case.sides),
        *wording.statistics_lines(diagnosis.finding),
        *wording.likewise_lines(diagnosis),
        *number_lines(diagnosis.finding, closer_case.judgement),
        *wording.swap_lines(diagnosis.finding, *case.sides),
        *_notes(case, closer_case, diagnosis.finding),
        "",
        *spread.spread_lines(closer_case.judgement),
        "",
        *_lines_of_judgements("proposes", closer_case, diagnosis),
        "",
    )


def _lines_of_judgements(field: str, closer_case: Case, diagnosis: Diagnosis) -> Iterator[str]:
    for function in closer_case.judgements(field):
        yield from function(closer_case, diagnosis)


def _first_blame(case: Case) -> Blame | None:
    """Return the first judgement's finding on the candidate alone; None if no judgement has one."""
    return next(filter(None, (blame(case) for blame in case.judgements("blames"))), None)


def _broken_rules(case: Case) -> Iterator[str]:
    """Yield the mistakes of each side's training loop."""
    for side in case.sides:
        yield from (f"In the {side.name}: {words}" for words in side.trace.header.violations)


def _notes(case: Case, closer_case: Case, finding: Finding) -> Iterator[str]:
    """Yield advice on gradients that are reduced in copies, and on how to record missing values.

    Values are missing where only digests were kept; names, where no module holds a tensor.
    """
    if finding.problem == "values" and finding.difference is None:
        step = finding.pair.moment.step
        manifests = [side.manifest for side in case.sides if side.manifest is not None]
        yield f"Digests alone were kept of step {step}; to see elements, record again:"
        yield from (
            f"  {manifest.again(str(step))}" for manifest in manifests if not manifest.is_imported
        )
    if (finding.problem, finding.pair.kind) == ("replicas", "reduced_grad"):
        yield REDUCED_IN_COPIES
    if case.candidate.way_in != LAYOUT and finding.pair.moment == INIT:
        if finding.problem in ("replicas", "pieces", "shape"):
            yield SHARDED_BY_HAND
        unnamed = any("unnamed" in side.trace.header.unobservable for side in closer_case.sides)
        if unnamed and other_weights(finding, closer_case.judgement):
            yield MASTERS_BY_HAND
    yield from clip_lines(finding, closer_case.judgement)
    yield from sum_of_grad_lines(finding)


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
        repeated_recording = case.again.ours(case.window, Variant(gradients=False, updates=False))
        finding = differs(repeated_recording, case.candidate)
    except SideFailed as failed:
        return f"; not repeatable: in a second run {failed.reason}"
    if finding is None:
        return ""
    return f"; not repeatable: {what_differs(finding)} in a second run of the candidate"
