"""Compare a step's losses and gradients with recomputed ones, within rounding error.

Where a tensor is near the plain one, or has the very bits of a sum in its own dtype, no more is
asked. Else the step is computed twice more, see `perturbed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pytest_precision.recorders.gradients.held_gradient import (
    HeldGradient,
    absent_gradients,
    held_gradients,
)
from pytest_precision.recorders.gradients.pieces import ShownStep, joined, part, start_digest
from pytest_precision.recorders.gradients.plain import (
    MOST_FITTED,
    PlainLoop,
    PlainMicrobatch,
    Sums,
)
from pytest_precision.recorders.gradients.plain_sums import PlainSums
from pytest_precision.trace.gradient_log import GradientLog

NEAR_ROUNDINGS = 64
"""Unit roundoffs of the compute dtype within which a tensor is near the plain one."""

NEAR_AT_MOST = 2.0**-5
"""Largest such share; the same as a factor may leave, see `parity.compare.ratio`."""


def judge_step(
    log: GradientLog,
    loop: PlainLoop,
    ranks: Sequence[ShownStep],
    before: Sequence[ShownStep],
    sums: PlainSums,
) -> None:
    """Compare a step's losses and gradients with recomputed ones, and log those that are wrong.

    Args:
        log: takes the findings; one that has some is not judged further.
        loop: the workload's.
        ranks: what each rank shows.
        before: what each rank showed of the last checked step; empty at the first.
        sums: that are known of steps, and that are kept for the other side.
    """
    first = ranks[0]
    weights = joined([seen for own in ranks for seen in own.weights])
    lacking = loop.lacking(weights, first.buffers)
    if lacking:
        log.silent = f"its engine shows no whole {lacking[0]}"
        return
    size = max(own.dealt[1] for own in ranks)
    near = min(NEAR_ROUNDINGS * loop.unit, NEAR_AT_MOST)
    start = start_digest(first.step, size, first.scale, weights, first.buffers)
    known = sums.find(start)
    if known is not None and not _beyond(held_gradients(ranks, known), near, log):
        log.breaches = [*absent_gradients(ranks, known, {*weights}, near)]
        return
    loop.put(weights, first.buffers, first.scale)
    single: list[PlainMicrobatch] = []
    plain = Sums.of(_keeping(loop.microbatches(first.step), single), size)
    held = held_gradients(ranks, plain)
    beyond = _beyond(held, near, log)
    whole = single if len(single) == len(plain.losses) else []
    if whole:  # computing again costs as much as the step itself
        beyond = [one for one in beyond if not _is_rounded_sum(one, single, size, first.scale)]
    log.breaches = [*absent_gradients(ranks, plain, {*weights}, near)]
    if not beyond:
        sums.keep(start, plain)
        return
    # Only here, so that a run whose gradients are right does not import what explains others.
    from pytest_precision.recorders.gradients.fit import UnlikeStep
    from pytest_precision.recorders.gradients.perturbed import judge_perturbed

    step = UnlikeStep(loop, first, before, weights, size, near, held, single[0], whole)
    judge_perturbed(log, step, beyond)


def _beyond(held: Sequence[HeldGradient], near: float, log: GradientLog) -> list[HeldGradient]:
    """Return tensors that are off by more than rounding explains; log the error of the others."""
    offs = [one.off for one in held]
    log.judged = len(held)
    log.worst = max([0.0, *(off / near for off in offs if off <= near)])
    return [one for one, off in zip(held, offs, strict=True) if not off <= near]


def _keeping(
    given: Iterable[PlainMicrobatch], kept: list[PlainMicrobatch]
) -> Iterator[PlainMicrobatch]:
    """Yield all microbatches; append the first ones, up to `MOST_FITTED` elements, to `kept`."""
    elements = 0
    for one in given:
        elements += sum(gradient.numel() for gradient in one.gradients.values())
        if not kept or elements <= MOST_FITTED:
            kept.append(one)
        yield one


def _is_rounded_sum(
    one: HeldGradient, single: Sequence[PlainMicrobatch], size: int, scale: float
) -> bool:
    """Return whether a gradient equals the right sum, rounded to the gradient's dtype at each term.

    Each partial sum is rounded to the dtype of the gradient, in the order of microbatches and then
    of ranks: where terms cancel, roundings of larger partial sums are all that is left of the
    difference.

    Args:
        one: a tensor that is not near the plain one; a loss is no sum.
        single: all microbatches of the step.
        size: of the data-parallel dimension.
        scale: the loss scale of the gradients that the side shows.
    """
    if one.seen is None:
        return False
    sums: dict[int, Tensor] = {}
    for given in single:
        share = given.number % size
        if one.name in given.gradients and one.share in (None, share):
            term = (part(given.gradients[one.name], one.seen) * scale).to(one.seen.tensor.dtype)
            sums[share] = sums[share] + term if share in sums else term
    first, *others = (sums[share] for share in sorted(sums))
    return torch.equal(sum(others, first).reshape(one.seen.tensor.shape), one.seen.tensor)
