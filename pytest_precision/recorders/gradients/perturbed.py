"""Perturbed: recompute a step with slightly moved weights, to learn how far rounding may go.

What that moves a loss or a gradient by is what rounding may, also where its terms cancel. What is
further from the plain one is wrong, and is held to the wrong rules that loops have followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pytest_precision.recorders.gradients.accumulation_rules import explained
from pytest_precision.recorders.gradients.fit import fit_by_dealt
from pytest_precision.recorders.gradients.held_gradient import HeldGradient
from pytest_precision.recorders.gradients.pieces import ShownStep, part
from pytest_precision.recorders.gradients.plain import PlainLoop, PlainMicrobatch, Sums
from pytest_precision.trace.gradient_log import GradientBreach, GradientLog

SPREADS = 8
"""How many times as far as a perturbed computation a tensor may be from the plain one."""

MISCOUNTED = 2.0**-3
"""How far from 1 a microbatch may count in all tensors together. The layouts of
`fixtures/variations` reach 0.003 in bf16, a mean of means reaches 1 in the package's workloads."""

SEEDS = (1, 2)
"""Of the perturbations."""

GIVES_ZEROS = "it gives zeros there"
"""What is said of a gradient of an expert that no token chose, where no wrong rule fits."""

UNREPEATABLE = "the workload gives other gradients at the same weights each time"
"""Why nothing is judged where a forward draws random numbers, or counts its calls."""

REMEMBERS = "a forward reads buffers that the forwards before it have changed, on each rank its own"
"""Why nothing is judged where several ranks train what spectral normalisation or a running mean
computes in training: each rank has gone on from its own microbatches, and one process from all."""


def judge_perturbed(
    log: GradientLog,
    loop: PlainLoop,
    ranks: Sequence[ShownStep],
    before: Sequence[ShownStep],
    weights: Mapping[str, Tensor],
    near: float,
    held: Sequence[HeldGradient],
    beyond: Sequence[HeldGradient],
    first_given: PlainMicrobatch,
    single: Sequence[PlainMicrobatch],
) -> None:
    """Log gradients that differ from the recomputed ones by more than perturbed weights explain.

    Args:
        log: has the gradients that are absent.
        loop: the workload's, which has just computed the step.
        ranks: what each rank shows.
        before: what each rank showed of the last checked step; empty at the first.
        weights: of the step.
        near: what rounding leaves of a tensor at least.
        held: all that was looked at.
        beyond: those of them that are further off.
        first_given: the first microbatch as the loop computed it.
        single: all microbatches; empty where they are too many to be kept.
    """
    first, size = ranks[0], max(own.dealt[1] for own in ranks)
    later = next(loop.microbatches(first.step)) if size > 1 and first.buffers else None
    loop.put(weights, first.buffers, first.scale)
    again = next(loop.microbatches(first.step))
    if _differs(first_given, again, near):
        log.silent = "" if log.breaches else UNREPEATABLE
        return
    remembers = later is not None and _differs(first_given, later, 0.0)
    remembers &= not _differs(first_given, again, 0.0)
    wrong = [*_unexplained(beyond, held, loop, ranks, weights, near, before, single)]
    if remembers:  # which leaves nothing that a wrong rule explains
        wrong = [one for one in wrong if one.words]
    log.breaches = [*wrong, *log.breaches]
    log.silent = REMEMBERS if remembers and not log.breaches else ""


def _differs(one: PlainMicrobatch, again: PlainMicrobatch, near: float) -> bool:
    """Return whether a microbatch's loss or gradients, recomputed, are off by more than `near`."""
    return abs(one.loss - again.loss) > near * abs(one.loss) or any(
        float((gradient - again.gradients[name]).norm()) > near * float(gradient.norm())
        for name, gradient in one.gradients.items()
    )


def _unexplained(
    beyond: Sequence[HeldGradient],
    held: Sequence[HeldGradient],
    loop: PlainLoop,
    ranks: Sequence[ShownStep],
    weights: Mapping[str, Tensor],
    near: float,
    before: Sequence[ShownStep],
    single: Sequence[PlainMicrobatch],
) -> Iterator[GradientBreach]:
    """Yield gradients too wrong to stem from rounded weights, with the mistake if it is known."""
    first, size = ranks[0], max(own.dealt[1] for own in ranks)
    spread = [0.0] * len(beyond)
    bounds: list[float] = []
    for seed in SEEDS:  # the second one only where the first one does not explain all of them
        loop.put(weights, first.buffers, first.scale, seed)
        other = Sums.of(loop.microbatches(first.step), size)
        for number, one in enumerate(beyond):
            spread[number] = max(spread[number], one.share_of_plain(_of(one, other)))
        bounds = [
            near + SPREADS * moved + one.summing for one, moved in zip(beyond, spread, strict=True)
        ]
        if all(one.off <= bound for one, bound in zip(beyond, bounds, strict=True)):
            break
    wrong = [(one, bound) for one, bound in zip(beyond, bounds, strict=True) if one.off > bound]
    loop.put(weights, first.buffers, first.scale)
    if not wrong:
        miscounted = {*_miscounted(beyond, held, single, size, near)}
        wrong = [(one, near) for one in beyond if (one.kind, one.rank) in miscounted]
    if not wrong:
        return
    old = {rank: {seen.name: seen.tensor for seen in own.grad} for rank, own in enumerate(before)}
    words = explained([one for one, _ in wrong], held, loop, first.step, size, near, old, single)
    for (one, bound), told in zip(wrong, words, strict=True):
        told = told or ("" if one.plain.any() else GIVES_ZEROS)
        yield GradientBreach(first.step, one.kind, one.name, one.rank, one.off, bound, told)


def _miscounted(
    beyond: Sequence[HeldGradient],
    held: Sequence[HeldGradient],
    single: Sequence[PlainMicrobatch],
    size: int,
    near: float,
) -> Iterator[tuple[str, int | None]]:
    """Yield (kind, rank) where the gradients do not count every microbatch once.

    Rounding may move a single tensor further than a wrong count does, but it has no direction.
    """
    for kind, rank in dict.fromkeys((one.kind, one.rank) for one in beyond if one.kind != "loss"):
        own = [one for one in held if (one.kind, one.rank) == (kind, rank)]
        fit = fit_by_dealt(own, single, size, near)
        if fit and fit.is_clear and any(abs(count - 1) > MISCOUNTED for count in fit.counts):
            yield kind, rank


def _of(one: HeldGradient, other: Sums) -> Tensor:
    """Return from another computation the counterpart of one of the run's losses or gradients."""
    if one.kind == "loss":
        assert one.share is not None
        return torch.tensor([other.losses[one.share]]).double()
    if one.share is not None:
        return other.shares[one.share][one.name]
    assert one.seen is not None
    return part(other.total[one.name], one.seen)
