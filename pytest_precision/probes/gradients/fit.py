"""Find by least squares how often each microbatch counts in a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.probes.gradients.held_gradient import HeldGradient
from pytest_precision.probes.gradients.plain import PlainLoop, PlainMicrobatch
from pytest_precision.probes.gradients.shown_pieces import ShownStep, part

ROOM_OF_FIT = 4
"""How much more than one tensor may be off, all of a fit may leave."""

NEAR_ONE = 2.0**-5
"""How far a count may be from a number that it stands for, where few tensors are fitted, or the
gradients of several microbatches are much alike."""


CLEARLY = 4
"""How much more than they leave do counts other than 1 explain, where they are no rounding.
That of NVFP4 has a direction: it moves counts by a half, and leaves as much as it explains."""


class MicrobatchFit(NamedTuple):
    """Least-squares weights w with which the sum of w * (microbatch gradient) is a given gradient.

    Attributes:
        counts: how often each microbatch counts; one without a gradient counts once, as nothing
            tells how often it does.
        moved: norm of what the counts change from a sum in which each counts once.
        left: norm of what they leave unexplained.
    """

    counts: list[float]
    moved: float
    left: float

    @property
    def is_clear(self) -> bool:
        """Return whether the fitted counts differ from 1 by much more than the fit's error."""
        return self.moved > CLEARLY * self.left


@dataclass
class UnlikeStep:
    """A train step whose losses or gradients differ from the recomputed ones.

    Attributes:
        loop: the workload's, which has just computed the step.
        first: what the first rank shows.
        before: what each rank showed of the last checked step; empty at the first.
        weights: of the step.
        size: of the data-parallel dimension.
        near: what rounding leaves of a tensor at least.
        gradients: all losses and gradients that were looked at.
        first_microbatch: the first microbatch as the loop computed it.
        single: all microbatches; empty where they are too many to be kept.
    """

    loop: PlainLoop
    first: ShownStep
    before: Sequence[ShownStep]
    weights: Mapping[str, Tensor]
    size: int
    near: float
    gradients: Sequence[HeldGradient]
    first_microbatch: PlainMicrobatch
    single: Sequence[PlainMicrobatch]

    @cached_property
    def microbatches(self) -> Sequence[PlainMicrobatch]:
        """Return all recomputed microbatches of the step; recompute those not kept in memory."""
        return self.single or [*self.loop.microbatches(self.first.step)]

    def put(self, seed: int | None = None) -> None:
        """Load the step's weights into the recomputing loop, perturbed if a seed is given."""
        self.loop.put(self.weights, self.first.buffers, self.first.scale, seed)

    def of(self, kind: str, rank: int | None) -> Unexplained:
        """Return the run's losses or gradients of one kind on one rank."""
        gradients = [
            gradient
            for gradient in self.gradients
            if (gradient.kind, gradient.rank) == (kind, rank)
        ]
        return Unexplained(gradients, self)


class Unexplained(NamedTuple):
    """Losses or gradients of one kind and rank in one train step, for which a cause is sought."""

    gradients: Sequence[HeldGradient]
    step: UnlikeStep

    def dealt(self, microbatches: Sequence[PlainMicrobatch]) -> list[PlainMicrobatch]:
        """Return those of `microbatches` that the gradient sums up: one rank's, or all."""
        return [
            microbatch
            for microbatch in microbatches
            if self.gradients[0].share in (None, microbatch.number % self.step.size)
        ]

    def fit(self, microbatches: Sequence[PlainMicrobatch]) -> MicrobatchFit | None:
        """Fit a weighted sum of microbatches' gradients; None if there are none, or none fits."""
        if not microbatches:
            return None
        columns = torch.stack(
            [self._joined(microbatch.gradients) for microbatch in microbatches], 1
        )
        actual_tensor = torch.cat(
            [gradient.got.reshape(-1) for gradient in self.gradients]
        ).unsqueeze(1)
        counts = torch.linalg.lstsq(columns, actual_tensor).solution
        left = float((columns @ counts - actual_tensor).norm())
        if not left <= ROOM_OF_FIT * self.step.near * float(actual_tensor.norm()):
            return None
        counts = counts.masked_fill((columns.norm(dim=0) == 0).unsqueeze(1), 1.0)
        moved = float((columns @ (counts - 1)).norm())
        return MicrobatchFit(counts.reshape(-1).tolist(), moved, left)

    def _joined(self, plain: Mapping[str, Tensor]) -> Tensor:
        parts = []
        for gradient in self.gradients:
            assert gradient.piece is not None  # only losses have none
            tensor = plain.get(gradient.name)
            if tensor is None:
                tensor = torch.zeros(gradient.piece.shape, dtype=torch.float64)
            parts.append(part(tensor, gradient.piece).reshape(-1))
        return torch.cat(parts)
