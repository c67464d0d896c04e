"""A loss or gradient of the run under test, paired with the recomputed one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.observation import Observation, Span
from pytest_precision.probes.gradients.gradient_log import GradientBreach
from pytest_precision.probes.gradients.plain import Sums
from pytest_precision.probes.gradients.shown_pieces import ShownStep, part

UNIT_OF_SUMS = torch.finfo(torch.bfloat16).eps / 2
"""Unit roundoff of bf16, to which a stack may be told to round what each rank gives to a sum over
ranks, and each partial sum: a sum of n ranks then has n roundings, and lies on the grid of bf16."""

SMALLEST_NORMAL = torch.finfo(torch.float32).smallest_normal
"""Least norm that an error is a share of: below the smallest normal number of fp32 and bf16, they
are on a fixed grid, so that rounding has no relative bound there. A gradient of zeros, of an expert
that no token chose, has this norm."""


class HeldGradient(NamedTuple):
    """A loss or gradient of the run under test, paired with the recomputed one.

    Attributes:
        kind, name, rank: see `GradientBreach`.
        got: what the side has, fp64.
        plain: what the plain loop gives, fp64.
        share: position in the data-parallel dimension of a rank's own sum, or number of a loss.
        piece: the piece that the side shows; None of a loss.
        sums: what the plain loop gives, of a sum over ranks.
    """

    kind: str
    name: str
    rank: int | None
    got: Tensor
    plain: Tensor
    share: int | None = None
    piece: Observation | None = None
    sums: Sums | None = None

    @property
    def is_finite(self) -> bool:
        """Return whether the run's tensor and the recomputed one are both finite."""
        return bool(self.got.isfinite().all() and self.plain.isfinite().all())

    @property
    def off(self) -> float:
        """Return the relative L2 error of the run's tensor against the recomputed one."""
        return self.share_of_plain(self.got)

    def share_of_plain(self, other_tensor: Tensor) -> float:
        """Return `other_tensor`'s relative L2 distance from the recomputed fp64 tensor."""
        return float((other_tensor - self.plain).norm()) / self._size

    @property
    def _size(self) -> float:
        return max(float(self.plain.norm()), SMALLEST_NORMAL)

    @property
    def summing(self) -> float:
        """Return the largest relative error that a sum over ranks in bf16 may cause."""
        if self.sums is None or self.piece is None or len(self.sums.shares) < 2:
            return 0.0
        terms = [share[self.name] for share in self.sums.shares if self.name in share]
        on_its_grid = torch.equal(
            self.piece.tensor.bfloat16().to(self.piece.tensor), self.piece.tensor
        )
        roundings = len(terms) if on_its_grid else 1
        size = sum(float(part(term, self.piece).norm()) for term in terms)
        return roundings * UNIT_OF_SUMS * size / self._size


def held_gradients(ranks: Sequence[ShownStep], plain_sums: Sums) -> list[HeldGradient]:
    """Pair the finite losses, local and reduced gradients of a step with recomputed ones.

    A step that has overflowed is skipped, and one that must not is no matter of rounding.
    """
    return [gradient for gradient in _shown_held_gradients(ranks, plain_sums) if gradient.is_finite]


def _shown_held_gradients(ranks: Sequence[ShownStep], plain_sums: Sums) -> Iterator[HeldGradient]:
    for rank, step in enumerate(ranks):
        for piece in step.losses:
            if isinstance(piece.place, Span) and piece.tensor.numel() == 1:
                number = piece.place.start
                computed = number < len(plain_sums.losses)
                value = torch.tensor([plain_sums.losses[number] if computed else 0.0]).double()
                name = f"microbatch {number}"
                yield HeldGradient(
                    "loss", name, rank, piece.tensor.double().reshape(1), value, number
                )
    for rank, step in enumerate(ranks):
        share, size = step.dealt
        for piece in step.grad if size == len(ranks) else ():
            if piece.tensor.numel() == torch.Size(piece.shape).numel():
                expected = plain_sums.shares[share].get(piece.name)
                if expected is not None:
                    actual_tensor = piece.tensor.double().reshape(expected.shape) / step.scale
                    yield HeldGradient(
                        "grad", piece.name, rank, actual_tensor, expected, share, piece
                    )
    reduced_observations = [piece for step in ranks for piece in step.reduced]
    for name in dict.fromkeys(piece.name for piece in reduced_observations):
        for rank, step in enumerate(ranks):
            for piece in step.reduced:
                if piece.name == name and name in plain_sums.total and piece.tensor.numel():
                    expected = part(plain_sums.total[name], piece)
                    actual_tensor = piece.tensor.double().reshape(expected.shape) / step.scale
                    yield HeldGradient(
                        "reduced_grad", name, rank, actual_tensor, expected, None, piece, plain_sums
                    )


def absent_gradients(
    ranks: Sequence[ShownStep], plain_sums: Sums, weights: Set[str], near: float
) -> Iterator[GradientBreach]:
    """Yield an error for each weight that should have a gradient, but has none on any rank.

    A side that shows no gradients, or by names that are no weights', has nothing that is missing.
    """
    kinds = {"grad": "grad", "reduced_grad": "reduced"}
    shown = {
        kind: [piece for step in ranks for piece in getattr(step, of)] for kind, of in kinds.items()
    }
    names = {piece.name for pieces in shown.values() for piece in pieces if piece.tensor.numel()}
    kind = next((kind for kind, pieces in shown.items() if pieces), None)
    if kind is None or not names <= weights | plain_sums.total.keys():
        return
    for name, gradient in plain_sums.total.items():
        size = float(gradient.norm())
        if name not in names and 0 < size < float("inf"):
            yield GradientBreach(ranks[0].step, kind, name, None, 1.0, near, "no rank has any")
