"""Compare a step's losses and gradients with recomputed ones, within rounding error.

Where a tensor is near the plain one, or has the very bits of a sum in its own dtype, no more is
asked. Else the step is computed twice more, see `perturbed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pytest_precision.probes.gradients.gradient_log import GradientLog
from pytest_precision.probes.gradients.held_gradient import (
    HeldGradient,
    absent_gradients,
    held_gradients,
)
from pytest_precision.probes.gradients.plain import (
    MOST_FITTED,
    PlainLoop,
    PlainMicrobatch,
    Sums,
)
from pytest_precision.probes.gradients.plain_sums import PlainSums
from pytest_precision.probes.gradients.shown_pieces import (
    ShownStep,
    part,
    start_digest,
    whole_tensors,
)

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
    weights = whole_tensors([piece for shown in ranks for piece in shown.weights])
    lacking = loop.lacking(weights, first.buffers)
    if lacking:
        log.silent = f"its engine shows no whole {lacking[0]}"
        return
    size = max(shown.dealt[1] for shown in ranks)
    near = min(NEAR_ROUNDINGS * loop.unit, NEAR_AT_MOST)
    start = start_digest(first.step, size, first.scale, weights, first.buffers)
    stored = sums.find(start)
    if stored is not None and not _beyond(held_gradients(ranks, stored), near, log):
        log.breaches = [*absent_gradients(ranks, stored, {*weights}, near)]
        return
    loop.put(weights, first.buffers, first.scale)
    single: list[PlainMicrobatch] = []
    plain = Sums.of(_keeping(loop.microbatches(first.step), single), size)
    gradients = held_gradients(ranks, plain)
    beyond = _beyond(gradients, near, log)
    whole = single if len(single) == len(plain.losses) else []
    if whole:  # computing again costs as much as the step itself
        beyond = [
            gradient
            for gradient in beyond
            if not _is_rounded_sum(gradient, single, size, first.scale)
        ]
    log.breaches = [*absent_gradients(ranks, plain, {*weights}, near)]
    if not beyond:
        sums.keep(start, plain)
        return
    # Only here, so that a run whose gradients are right does not import what explains others.
    from pytest_precision.probes.gradients.fit import UnlikeStep
    from pytest_precision.probes.gradients.perturbed import judge_perturbed

    step = UnlikeStep(loop, first, before, weights, size, near, gradients, single[0], whole)
    judge_perturbed(log, step, beyond)


def _beyond(gradients: Sequence[HeldGradient], near: float, log: GradientLog) -> list[HeldGradient]:
    """Return tensors that are off by more than rounding explains; log the error of the others."""
    offs = [gradient.off for gradient in gradients]
    log.judged = len(gradients)
    log.worst = max([0.0, *(off / near for off in offs if off <= near)])
    return [gradient for gradient, off in zip(gradients, offs, strict=True) if not off <= near]


def _keeping(
    microbatches: Iterable[PlainMicrobatch], single: list[PlainMicrobatch]
) -> Iterator[PlainMicrobatch]:
    """Yield all microbatches; append the first ones, up to `MOST_FITTED` elements, to `single`."""
    elements = 0
    for microbatch in microbatches:
        elements += sum(gradient.numel() for gradient in microbatch.gradients.values())
        if not single or elements <= MOST_FITTED:
            single.append(microbatch)
        yield microbatch


def _is_rounded_sum(
    gradient: HeldGradient, single: Sequence[PlainMicrobatch], size: int, scale: float
) -> bool:
    """Return whether a gradient equals the right sum, rounded to the gradient's dtype at each term.

    Each partial sum is rounded to the dtype of the gradient, in the order of microbatches and then
    of ranks: where terms cancel, roundings of larger partial sums are all that is left of the
    difference.

    Args:
        gradient: a tensor that is not near the plain one; a loss is no sum.
        single: all microbatches of the step.
        size: of the data-parallel dimension.
        scale: the loss scale of the gradients that the side shows.
    """
    if gradient.piece is None:
        return False
    sums: dict[int, Tensor] = {}
    for microbatch in single:
        share = microbatch.number % size
        if gradient.name in microbatch.gradients and gradient.share in (None, share):
            term = (part(microbatch.gradients[gradient.name], gradient.piece) * scale).to(
                gradient.piece.tensor.dtype
            )
            sums[share] = sums[share] + term if share in sums else term
    first, *others = (sums[share] for share in sorted(sums))
    return torch.equal(
        sum(others, first).reshape(gradient.piece.tensor.shape), gradient.piece.tensor
    )
