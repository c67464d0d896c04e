"""Put a comparison's result into words: the first line names the defect, others its spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision.engine.kinds import causal_rank, is_shown_once_moved, lasting
from pytest_precision.parity.compare.differing import ONE_SIDED, Finding
from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.compare.logical_tensor import differing_rank
from pytest_precision.parity.compare.optional import shows_reads
from pytest_precision.parity.compare.statistics import NotFinite, Scalar, Statistics
from pytest_precision.parity.explain.unlike import (
    extra_update,
    other_number,
    other_weights,
    rate_has_moved,
)
from pytest_precision.parity.words import listed, percent, power_of_two
from pytest_precision.trace.moment import END, Moment
from pytest_precision.trace.recording import Recording

if TYPE_CHECKING:
    from pytest_precision.parity.explain.diagnosis import Diagnosis

FEW = 10
"""Mismatched elements up to which a count says more than a share."""

NEAR = 1024
"""Distance in units in the last place up to which it says more than a relative error."""

WEIGHTS = ("lr", "master", "param")
"""Kinds of which each weight has one tensor."""

SCALES = ("loss_scale", "scale")
"""Kinds whose values are powers of two, as a rule."""

OTHER = {"candidate": "reference", "reference": "candidate"}
"""Each side to the other one."""


def headline(diagnosis: Diagnosis, judgement: Judgement) -> str:
    """Return one line: which tensor differs first, when, how, where and by how much."""
    finding = diagnosis.finding
    pair = finding.pair
    then = when(pair.moment)
    agreed = _agreed(pair.moment, judgement)
    if rate_has_moved(pair):
        then = "at the first update"
    others = other_weights(finding, judgement)
    if others:
        step = f"at step {pair.moment.step}" if pair.moment.step else "in the first step"
        return f"other weights are updated {step}: {others}{agreed}"
    extra = extra_update(finding, judgement)
    if extra:
        return extra
    number = other_number(judgement, pair.moment.op)
    if number and pair.kind == "loss":
        return f"{pair.kind} differs {then}: {number}{agreed}"
    if finding.problem in ONE_SIDED:
        return _lost(finding)
    if finding.fault is not None:
        fault = finding.fault
        return f"{pair.kind} of {pair.name} in the {finding.faulty_side}: {fault.text} {then}"
    if finding.problem in ("dtype", "shape"):
        ours, theirs = property_of(finding)
        both = f"{pair.name} is {ours} here, {theirs} in the reference"
        return f"{pair.kind} differs {then}: {both}{agreed}"
    if finding.difference is None:  # digests differ, and nobody knows where
        rank = differing_rank(*pair.both)
        shard = "" if rank is None else f", first in the shard of {_rank_in_words(finding, rank)}"
        return f"{pair.kind} differs {then}: {pair.name}{shard}{agreed}"
    assert finding.statistics is not None
    if pair.kind == "decision":
        return f"decision differs {then}: {flipped(finding, finding.statistics)}{agreed}"
    looks = f", {diagnosis.signature}" * diagnosis.has_pattern
    much = extent(finding, finding.statistics)
    return f"{pair.kind} differs {then}{looks}: {much}{agreed}"


def _lost(finding: Finding) -> str:
    """Return one line that says whether candidate or reference lacks a tensor."""
    pair = finding.pair
    sides = ("candidate", "reference")
    lacks, has = sides if finding.problem == "missing" else sides[::-1]
    if is_shown_once_moved(pair.kind):
        stands = f"the {lacks}'s {pair.kind} {pair.name} has not advanced since step 0"
        return f"{stands}; the {has}'s has {when(pair.moment)}"
    where = f"the {lacks} {when(pair.moment)}; the {has} has it"
    lost = f"{pair.kind} of {pair.name} is missing from {where}"
    reason = "no call of its module was seen, and no param of that name before the step"
    return f"{lost}: {reason}" if shows_reads(pair.kind) else lost


def flipped(finding: Finding, statistics: Statistics) -> str:
    """Describe a choice that differs, such as a token's expert, and the candidate's margin."""
    assert statistics.first is not None
    assert finding.pair.candidate is not None
    row = statistics.first[:1]
    thing = " ".join(map(str, (finding.pair.name, *row)))
    candidate_scalar, reference_scalar = statistics.candidate_first, statistics.reference_first
    chosen = f"{thing} is {candidate_scalar} here, {reference_scalar} in the reference"
    trace = finding.pair.candidate.trace
    for entry in trace.entries(finding.pair.moment, {"margin"}):
        if entry.name == finding.pair.name and not entry.digest:
            return f"{chosen}; margin {float(trace.tensor(entry)[row]):.2g}"
    return chosen


def disturbance(finding: Finding, side: str) -> str:
    """Return one line on a tensor that a save or an evaluation changed, which it must not do."""
    pair = finding.pair
    operation = f"{pair.moment.operation} after step {pair.moment.step}"
    if finding.problem in ONE_SIDED:
        verb = "added" if finding.problem == "extra" else "removed"
        return f"{operation} {verb} {pair.kind} of {pair.name} in the {side}"
    if finding.problem != "values" or finding.statistics is None:
        return f"{operation} changed the {finding.problem} of {pair.kind} {pair.name} in the {side}"
    changed = extent(finding, finding.statistics, "before")
    return f"{operation} changed {pair.kind} in the {side}: {changed}"


def extent(finding: Finding, statistics: Statistics, other: str = "in the reference") -> str:
    """Return words on how much of a tensor differs, how far at most, and where.

    Args:
        finding: what differs.
        statistics: of the difference.
        other: where the second value of each pair was found.
    """
    name = finding.pair.name
    if statistics.numel == 1:
        ours = value_of(finding, statistics.candidate_first)
        theirs = value_of(finding, statistics.reference_first)
        return f"{name} is {ours}{where(finding, statistics.first)}, not {theirs}"
    share = f"{percent(statistics.mismatched, statistics.numel)} of {name}"
    if statistics.mismatched < FEW:
        share = f"{statistics.mismatched} of {statistics.numel} elements of {name}"
    if statistics.nan_mismatched or statistics.inf_mismatched or not statistics.measured:
        rest = f", relative L2 error {statistics.rel_l2:.2g} elsewhere" * statistics.measured
        return f"{name} {not_finite(statistics, other)}{where(finding, statistics.first)}{rest}"
    if statistics.max_ulp is not None and statistics.max_ulp <= NEAR:
        worst = f"worst {statistics.max_ulp} ulp"
    else:
        worst = f"relative L2 error {statistics.rel_l2:.2g}, worst"
    return f"{share}, {worst} at {statistics.worst}{where(finding, statistics.worst)}"


def value_of(finding: Finding, value: Scalar | None) -> str:
    """Format a tensor element; a loss scale or other scale that is a power of two as `2^n`."""
    if isinstance(value, float) and finding.pair.kind in SCALES:
        return power_of_two(value) or repr(value)
    return repr(value)


def not_finite(statistics: Statistics, other: str) -> str:
    """Count NaN and infinities, as in `is all NaN, and is finite in the reference`."""
    candidate_not_finite, reference_not_finite = (
        statistics.candidate_not_finite,
        statistics.reference_not_finite,
    )
    if candidate_not_finite == reference_not_finite and (
        statistics.nan_mismatched or statistics.inf_mismatched
    ):
        return f"has NaN or infinities in other places than {other}"
    if candidate_not_finite == reference_not_finite:
        return f"has NaN of other bytes than {other}"
    sides = [
        _counted(side, statistics.numel) for side in (candidate_not_finite, reference_not_finite)
    ]
    return f"{sides[0]}, and {sides[1]} {other}"


def _counted(side: NotFinite, numel: int) -> str:
    if not any(side):
        return "is finite"
    if numel in side:
        return "is all NaN" if side.nan else "is all infinite"
    names = (
        f"{side.nan} NaN",
        f"{side.infinite} {'infinity' if side.infinite == 1 else 'infinities'}",
    )
    counts = " and ".join(name for name, count in zip(names, side, strict=True) if count)
    return f"has {counts} in {numel} elements"


def where(finding: Finding, index: tuple[int, ...] | None) -> str:
    """Return words on which rank holds an element, as ` on rank 1`; empty without an `index`."""
    if index is None:
        return ""
    rank = rank_of(finding, index)
    return " on every rank" if rank is None else f" on {_rank_in_words(finding, rank)}"


def _rank_in_words(finding: Finding, rank: int) -> str:
    """Return a rank in words, of the side that is to blame, or of the candidate."""
    pair = finding.pair
    of_reference = pair.candidate is None or finding.faulty_side == "reference"
    side = pair.reference if of_reference else pair.candidate
    assert side is not None
    return side.trace.rank_in_words(rank)


def rank_of(finding: Finding, index: tuple[int, ...]) -> int | None:
    """Return the candidate's rank that holds the element at `index`; None if all ranks hold it."""
    if finding.fault is not None:
        return finding.fault.rank
    if finding.pair.rank is not None or finding.pair.candidate is None:
        return finding.pair.rank
    return finding.pair.candidate.rank_of(index)


def property_of(finding: Finding) -> tuple[str, str]:
    """Return the candidate's and the reference's dtype or shape, whichever of the two differs."""
    ours, theirs = (side.pieces[0] for side in finding.pair.both)
    if finding.problem == "dtype":
        return ours.dtype, theirs.dtype
    return str(list(ours.shape)), str(list(theirs.shape))


def statistics_lines(finding: Finding, other: str = "in the reference") -> list[str]:
    """Return the error statistics of a pair of tensors as lines, worded as in torch.testing.

    Args:
        finding: what differs.
        other: where the second value of each pair was found.
    """
    s = finding.statistics
    if finding.difference is None or s is None:
        return []
    limit = f" (up to {finding.difference.allowed} allowed)" if finding.difference.allowed else ""
    share = f"{100 * s.mismatched / s.numel:.1f}%"
    # Replicas are compared with that of the first rank, whatever the other side has.
    other = other if finding.fault is None else "on the first rank"
    lines = [
        f"Mismatched elements: {s.mismatched} / {s.numel} ({share}), "
        f"{s.beyond} beyond the criterion",
        f"First at index {s.first}{where(finding, s.first)}: "
        f"{value_of(finding, s.candidate_first)} here, "
        f"{value_of(finding, s.reference_first)} {other}",
        f"Worst at index {s.worst}{where(finding, s.worst)}: "
        f"{value_of(finding, s.candidate_worst)} here, "
        f"{value_of(finding, s.reference_worst)} {other}{limit}",
    ]
    if any(s.candidate_not_finite) or any(s.reference_not_finite):
        lines.append(f"It {not_finite(s, other)}")
    if not s.measured:
        return lines
    lines += [
        f"Greatest absolute difference: {s.max_abs:.6g}",
        f"Greatest relative difference: {s.max_rel:.6g}, relative L2 error {s.rel_l2:.3g}",
    ]
    # A setting is chosen, not computed: two learning rates are 10^14 ulp apart.
    if s.max_ulp is not None and finding.pair.kind not in lasting("setting"):
        lines.append(f"Greatest distance in units in the last place: {s.max_ulp}")
    return lines


def likewise_lines(diagnosis: Diagnosis) -> list[str]:
    """List the other tensors that show the same error as the first one."""
    return [f"The same of: {listed(diagnosis.likewise, FEW)}"] if diagnosis.likewise else []


def name_lines(finding: Finding, judgement: Judgement, *sides: Recording) -> list[str]:
    """Return advice on stripping a wrapper's name prefix, if only one run has a weight's name."""
    lost = finding.problem in ONE_SIDED and finding.pair.kind in WEIGHTS
    if not lost or other_weights(finding, judgement):
        return []
    ways = dict.fromkeys(side.way_in.named for side in sides)
    return [f"Tensors are matched by name. If a wrapper adds a prefix, {way}" for way in ways]


def swap_lines(finding: Finding, *sides: Recording) -> list[str]:
    """Return a line on whose checkpoint runs in the other run's layout after a `swap`, if any.

    Args:
        finding: what differs.
        sides: the sides that the finding is about.
    """
    loads = [
        f"the {side.name}'s checkpoint runs in the {OTHER[side.name]}'s layout"
        for side in sides
        if _swapped(finding.pair.moment, side.cell.operations)
    ]
    return [f"After the swap {', and '.join(loads)}"] if loads else []


def _swapped(moment: Moment, operations: tuple[str, ...]) -> bool:
    """Return whether `swap`s have moved a run to the other run's layout by `moment`."""
    # Sides that run different operations are compared in train steps only.
    steps = [op for op, operation in enumerate(operations) if operation == "train"]
    op = steps[moment.step - 1] if moment.operation == "train" else moment.op
    return operations[: op + 1].count("swap") % 2 == 1


def when(moment: Moment) -> str:
    """Return a moment of the run in words, such as `at step 2 after backward`."""
    if moment.operation == "init":
        return "before the first step"
    if moment.phase == END:
        return f"after the last step, {moment.step}"
    if moment.operation == "train":
        return f"at step {moment.step} after {moment.phase}"
    return f"after {moment.operation}, which follows step {moment.step}"


def _agreed(moment: Moment, judgement: Judgement) -> str:
    if moment.op < 0:
        return ""
    differ = {op for (_, op), tally in judgement.spread.items() if tally.findings}
    before = [m for m in judgement.moments if m.op < moment.op and m.operation == "train"]
    agreed = [m for m in before if m.op not in differ]
    if agreed:
        return f"; step {agreed[-1].step} agreed"
    assert judgement.first is not None
    position = causal_rank(judgement.first.pair.kind)
    kinds = {
        kind for (kind, op), t in judgement.spread.items() if op == moment.op and not t.findings
    }
    same_op = [kind for kind in sorted(kinds, key=causal_rank) if causal_rank(kind) < position]
    if same_op:
        return f"; {', '.join(same_op)} agreed"
    start = judgement.moments[0].op
    return "; the start agreed" if start < 0 and start not in differ else ""
