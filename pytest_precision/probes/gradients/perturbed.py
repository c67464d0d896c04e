"""Recompute a step with slightly perturbed weights, to estimate how much rounding can change it.

What that moves a loss or a gradient by is what rounding may, also where its terms cancel. What is
further from the plain one is wrong, and is held to the wrong rules that loops have followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pytest_precision.probes.gradients.accumulation_rules import explained
from pytest_precision.probes.gradients.fit import UnlikeStep
from pytest_precision.probes.gradients.gradient_log import GradientBreach, GradientLog
from pytest_precision.probes.gradients.held_gradient import HeldGradient
from pytest_precision.probes.gradients.plain import PlainMicrobatch, Sums
from pytest_precision.probes.gradients.shown_pieces import part

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


def judge_perturbed(log: GradientLog, step: UnlikeStep, beyond: Sequence[HeldGradient]) -> None:
    """Log gradients whose error exceeds the change that slightly perturbed weights cause.

    Args:
        log: has the gradients that are absent.
        step: what the ranks show, and what the loop gives.
        beyond: losses and gradients that are not near the recomputed ones.
    """
    loop, first_microbatch = step.loop, step.first_microbatch
    later = (
        next(loop.microbatches(step.first.step)) if step.size > 1 and step.first.buffers else None
    )
    step.put()
    again = next(loop.microbatches(step.first.step))
    if _differs(first_microbatch, again, step.near):
        log.silent = "" if log.breaches else UNREPEATABLE
        return
    remembers = later is not None and _differs(first_microbatch, later, 0.0)
    remembers &= not _differs(first_microbatch, again, 0.0)
    wrong_gradient_breaches = [*_unexplained_breaches(beyond, step)]
    if remembers:  # which leaves nothing that a wrong rule explains
        wrong_gradient_breaches = [breach for breach in wrong_gradient_breaches if breach.words]
    log.breaches = [*wrong_gradient_breaches, *log.breaches]
    log.silent = REMEMBERS if remembers and not log.breaches else ""


def _differs(
    microbatch: PlainMicrobatch, repeated_microbatch: PlainMicrobatch, near: float
) -> bool:
    """Return whether recomputing a microbatch changed its loss or gradients by more than `near`."""
    return abs(microbatch.loss - repeated_microbatch.loss) > near * abs(microbatch.loss) or any(
        float((gradient - repeated_microbatch.gradients[name]).norm())
        > near * float(gradient.norm())
        for name, gradient in microbatch.gradients.items()
    )


def _unexplained_breaches(
    beyond: Sequence[HeldGradient], step: UnlikeStep
) -> Iterator[GradientBreach]:
    """Yield gradients with more error than perturbed weights cause, each with any known mistake."""
    spread = [0.0] * len(beyond)
    bounds: list[float] = []
    for seed in SEEDS:  # the second one only where the first one does not explain all of them
        step.put(seed)
        other_sums = Sums.of(step.loop.microbatches(step.first.step), step.size)
        for number, gradient in enumerate(beyond):
            share = gradient.share_of_plain(_recomputed_tensor(gradient, other_sums))
            spread[number] = max(spread[number], share)
        bounds = [
            step.near + SPREADS * moved + gradient.summing
            for gradient, moved in zip(beyond, spread, strict=True)
        ]
        if all(gradient.off <= bound for gradient, bound in zip(beyond, bounds, strict=True)):
            break
    wrong = [
        (gradient, bound)
        for gradient, bound in zip(beyond, bounds, strict=True)
        if gradient.off > bound
    ]
    step.put()
    if not wrong:
        miscounted = {*_miscounted(beyond, step)}
        wrong = [
            (gradient, step.near)
            for gradient in beyond
            if (gradient.kind, gradient.rank) in miscounted
        ]
    if not wrong:
        return
    words = explained(step, [gradient for gradient, _ in wrong])
    for (gradient, bound), mistake in zip(wrong, words, strict=True):
        mistake = mistake or ("" if gradient.plain.any() else GIVES_ZEROS)
        tensor = gradient.kind, gradient.name, gradient.rank
        yield GradientBreach(step.first.step, *tensor, gradient.off, bound, mistake)


def _miscounted(
    beyond: Sequence[HeldGradient], step: UnlikeStep
) -> Iterator[tuple[str, int | None]]:
    """Yield (kind, rank) where the gradients do not count every microbatch once.

    Rounding may move a single tensor further than a wrong count does, but it has no direction.
    """
    for kind, rank in dict.fromkeys(
        (gradient.kind, gradient.rank) for gradient in beyond if gradient.kind != "loss"
    ):
        every = step.of(kind, rank)
        fit = every.fit(every.dealt(step.single))
        if fit and fit.is_clear and any(abs(count - 1) > MISCOUNTED for count in fit.counts):
            yield kind, rank


def _recomputed_tensor(gradient: HeldGradient, other_sums: Sums) -> Tensor:
    """Return the tensor of other recomputed sums that corresponds to the run's `gradient`."""
    if gradient.kind == "loss":
        assert gradient.share is not None
        return torch.tensor([other_sums.losses[gradient.share]]).double()
    if gradient.share is not None:
        return other_sums.shares[gradient.share][gradient.name]
    assert gradient.piece is not None
    return part(other_sums.total[gradient.name], gradient.piece)
