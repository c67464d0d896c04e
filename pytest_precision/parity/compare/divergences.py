"""Compare two recorded runs: the first tensor that differs in causal order, and all later ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pytest_precision._progress import advance
from pytest_precision.engine.kinds import KINDS, RESTORED_KINDS, causal_rank
from pytest_precision.parity.compare.alike import AlikeKinds, AlikeTensors
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.compare.differing import Finding, Tally
from pytest_precision.parity.compare.first_cause import first_cause
from pytest_precision.parity.compare.optional import (
    UNREPORTED,
    OptionalPairs,
    Uncalled,
    shows_reads,
)
from pytest_precision.parity.compare.pairs import Pair, align, common_moments
from pytest_precision.parity.compare.sums import SummedLosses
from pytest_precision.parity.compare.tensors import compare, statistics
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording

if TYPE_CHECKING:
    from pytest_precision.parity.compare.noise import NoiseMeter

TOLD = frozenset(name for name, kind in KINDS.items() if kind.explanatory)
"""Kinds that only say more about another one."""


@dataclass
class Judgement:
    """The results of comparing all tensors of two recorded runs.

    Attributes:
        observations: number of pairs compared.
        bytes: number of bytes of the candidate's tensors in them.
        first: the first finding in causal order; where a forward of the same weights came to
            another loss, the finding of the same step that explains it.
        spread: kind and index of the operation to tally.
        moments: moments of the candidate that were compared.
        left_out: kinds that were not compared, each with the reason.
        forwards: where a side itself shows weights that a forward read: 0 for the candidate or 1
            for the reference, and the index of the candidate's operation.
    """

    observations: int = 0
    bytes: int = 0
    first: Finding | None = None
    spread: dict[tuple[str, int], Tally] = field(default_factory=lambda: defaultdict(Tally))
    moments: list[Moment] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    forwards: set[tuple[int, int]] = field(default_factory=set)

    def count_alike(self, tensors: AlikeTensors, moment: Moment) -> None:
        """Count pairs of one kind as compared, each of which has the same bytes on both sides."""
        tally = self.spread[tensors.kind, moment.op]
        tally.names.extend(name for name, _ in tensors.keys)
        tally.dtypes.update((dtype, dtype) for dtype in tensors.dtypes)
        self.observations += len(tensors.keys)
        self.bytes += tensors.nbytes

    def counted(self, pair: Pair) -> Tally:
        """Count a pair as compared; return the `Tally` for its kind of tensor and operation."""
        tally = self.spread[pair.kind, pair.moment.op]
        tally.names.append(pair.name)
        self.observations += 1
        if pair.candidate is not None:
            self.bytes += sum(piece.nbytes for piece in pair.candidate.pieces)
            if pair.reference is not None:
                dtypes = pair.candidate.pieces[0].dtype, pair.reference.pieces[0].dtype
                tally.dtypes.add(dtypes)
        return tally


def judge(
    candidate: Trace, reference: Trace, criteria: Criteria, noise: NoiseMeter | None = None
) -> Judgement:
    """Compare each tensor of the candidate's run with the reference's; return all the results.

    Args:
        candidate: one side.
        reference: the other.
        criteria: how equal they must be.
        noise: measures the bounds of criteria that are `noise()`, which are bitwise without it.

    Raises:
        RecordingError: if they have no moments in common.
    """
    judgement = Judgement(left_out=left_out(candidate, reference, criteria))
    aside = frozenset(judgement.left_out) | TOLD
    for side, trace in (("candidate", candidate), ("reference", reference)):
        for tensors, why in trace.header.unshown.items():
            judgement.left_out.setdefault(tensors, f"{side}: {why}")
    optional_pairs, uncalled = OptionalPairs(candidate, reference), Uncalled(candidate, reference)
    alike_kinds, sums = AlikeKinds(candidate, reference), SummedLosses(criteria)
    for moments in _watched_moments(judgement, common_moments(candidate, reference)):
        optional_pairs.begin(moments)
        judgement.moments.append(moments[0])
        local = _local(candidate, reference, moments)
        judgement.left_out = local | judgement.left_out
        uncounted = aside | local.keys() | _of_steps(candidate, reference, moments)
        for alike in alike_kinds.at(moments, uncounted):
            if not criteria.leave_out_some(alike.kind):
                judgement.count_alike(alike, moments[0])
                optional_pairs.note_alike(alike)
                uncounted |= {alike.kind}
        for aligned in sums.of(align(candidate, reference, moments, uncounted)):
            rule = criteria.of_tensor(aligned.kind, aligned.name)
            if rule.criterion.left_out:
                tensors = rule.key if rule.pattern else f"{aligned.kind}, except names of their own"
                judgement.left_out[tensors] = rule.criterion.left_out
                continue
            pair = uncalled.stand_in(aligned, moments)
            reason = UNREPORTED if pair is None else optional_pairs.aside(pair)
            if pair is None or reason is not None:
                optional_pairs.note(aligned, reason or UNREPORTED)
                continue
            tally = judgement.counted(pair)
            if pair.is_alike:
                continue
            bound = None if noise is None else partial(noise.bound, pair, moments[1])
            criterion = rule.criterion if bound is None else rule.criterion.measured(bound)
            _judge_unlike(judgement, tally, pair, criterion)
    judgement.left_out |= optional_pairs.left_out() | uncalled.left_out() | sums.left_out()
    judgement.first = first_cause(judgement)
    if judgement.first is not None:  # sides that agree need not be read once more
        judgement.forwards = {*_forwards(candidate, reference)}
    return judgement


def _judge_unlike(judgement: Judgement, tally: Tally, pair: Pair, criterion: Criterion) -> None:
    """Hold a pair whose bytes are not known to be the same to its criterion."""
    finding = finding_of(pair, criterion)
    if finding is not None:
        tally.findings.append(finding)
        judgement.first = judgement.first or finding
    elif criterion.tolerates and pair.tensors is not None:
        tally.within.append((pair.name, statistics(*pair.tensors, criterion)))


def _watched_moments(
    judgement: Judgement, common: Sequence[tuple[Moment, Moment]]
) -> Iterator[tuple[Moment, Moment]]:
    """Yield moments, and show whoever looks how far the judgement has come."""
    for moments in common:
        advance(moments[0].step, common[-1][0].step, judgement.bytes)
        yield moments


def _forwards(candidate: Trace, reference: Trace) -> Iterator[tuple[int, int]]:
    """Yield (run, operation index) where forward's weights are recorded; run 0 is the candidate."""
    for moments in common_moments(candidate, reference):
        for side, (trace, moment) in enumerate(zip((candidate, reference), moments, strict=True)):
            if any(map(shows_reads, trace.kinds_at(moment))):
                yield side, moments[0].op


def finding_of(pair: Pair, criterion: Criterion) -> Finding | None:
    """Return how a pair of unequal tensors violates its criterion; None if it does not."""
    ours, theirs = pair.candidate, pair.reference
    if ours is None or theirs is None:
        return Finding(pair, "missing" if ours is None else "extra")
    for name, side in (("candidate", ours), ("reference", theirs)):
        if side.fault is not None:
            return Finding(pair, side.fault.problem, side.fault.difference, side.fault, name)
    our_tensor, their_tensor = ours.tensor, theirs.tensor
    if our_tensor is None or their_tensor is None:  # only digests were kept, and those differ
        mine, other = ours.pieces[0], theirs.pieces[0]
        if mine.shape != other.shape:
            return Finding(pair, "shape")
        return Finding(pair, "values" if mine.dtype == other.dtype else "dtype")
    difference = compare(our_tensor, their_tensor, criterion)
    if difference is None:
        return None
    problem = difference.reason
    if problem == "dtype":
        # The dtype is what is wrong, but the values tell how the difference spreads.
        difference = compare(our_tensor, their_tensor, Bitwise(check_dtype=False)) or difference
    return Finding(pair, problem, difference)


def left_out(candidate: Trace, reference: Trace, criteria: Criteria) -> dict[str, str]:
    """Return the kinds of tensors, such as `exp_avg`, that are not compared, and why not."""
    sides = (candidate, reference)
    kinds = {kind for trace in sides for kind in (*trace.dtypes(), *trace.header.unobservable)}
    unchecked = {kind: criteria.unchecked(kind) for kind in sorted(kinds, key=causal_rank)}
    named = {rule.kind for rule in criteria.rules}
    reasons = {kind: reason for kind, reason in unchecked.items() if reason and kind in named}
    for side, trace in (("candidate", candidate), ("reference", reference)):
        for kind, reason in trace.header.unobservable.items():
            reasons.setdefault(kind, f"{side}: {reason}")
    ours, theirs = (trace.dtypes().keys() for trace in sides)
    for kind in sorted(ours ^ theirs):
        if kind in KINDS and KINDS[kind].optional == "kind":
            side = "candidate" if kind in theirs else "reference"
            reasons.setdefault(kind, f"the {side} has none")
    return {kind: reason for kind, reason in unchecked.items() if reason} | reasons


def _of_steps(candidate: Trace, reference: Trace, moments: tuple[Moment, Moment]) -> frozenset[str]:
    """Return kinds that the next step shows, where one side alone has loaded; else none."""
    ours, theirs = moments
    if ours.phase == theirs.phase:
        return frozenset()
    kinds = candidate.kinds_at(ours) | reference.kinds_at(theirs)
    return frozenset(kinds - RESTORED_KINDS)


def _local(candidate: Trace, reference: Trace, moments: tuple[Moment, Moment]) -> dict[str, str]:
    """Map kinds of rank-local tensors to why world sizes forbid a comparison; {} if sizes agree.

    Such tensors cannot be compared then; each kind comes with that reason.
    """
    candidate_moment, reference_moment = moments
    if candidate.world_size_at(candidate_moment) == reference.world_size_at(reference_moment):
        return {}
    since = (
        f" from {candidate_moment.operation} after step {candidate_moment.step} on"
        if candidate_moment.step
        else ""
    )
    why = f"every rank has its own, and the world sizes differ{since}"
    return dict.fromkeys(sorted(candidate.local_kinds() | reference.local_kinds()), why)


def differs(again: Recording, first: Recording, criteria: Criteria | None = None) -> Finding | None:
    """Return the first tensor whose bits differ between two runs; None if none does.

    Args:
        again: one run.
        first: the other.
        criteria: those that leave tensors out; without them, all are compared.
    """
    looked_at = {*again.trace.moments}
    for moment in (moment for moment in first.trace.moments if moment in looked_at):
        for pair in align(again.trace, first.trace, (moment, moment)):
            if criteria and criteria.of_tensor(pair.kind, pair.name).criterion.left_out:
                continue
            finding = None if _same(pair) else finding_of(pair, Bitwise())
            if finding is not None:
                return finding
    return None


def _same(pair: Pair) -> bool:
    """Return whether each rank holds the same bytes of a tensor in both runs."""
    if pair.candidate is None or pair.reference is None:
        return False
    repeated_logical_tensor, first_logical_tensor = pair.both
    return len(repeated_logical_tensor.pieces) == len(first_logical_tensor.pieces) and all(
        ours.dtype == theirs.dtype
        and repeated_logical_tensor.trace.same_bytes(ours, first_logical_tensor.trace, theirs)
        for ours, theirs in zip(
            repeated_logical_tensor.pieces, first_logical_tensor.pieces, strict=True
        )
    )
