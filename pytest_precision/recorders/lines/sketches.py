"""Sketches: a few numbers of a tensor, of which the relative error of two tensors can be told.

Elements are added up with random signs, so that the difference of two sketches is the sketch of the
difference, and its norm is that of the difference up to a fourth or so.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

SKETCH_NUMBERS = 16
"""Numbers of a sketch."""

SKETCH_SEED = 20

SIGNED = (torch.float32, torch.float64)
"""Dtypes whose elements are given signs as they are."""


class Sketches:
    """Makes sketches, with the same signs in every process."""

    def __init__(self) -> None:
        self._signs = torch.empty(0)
        self._made: dict[Hashable, tuple[float, ...]] = {}

    def of(self, tensor: Tensor, key: Hashable) -> tuple[float, ...]:
        """Return the sketch of a tensor of floating point numbers; nothing of another one.

        Args:
            tensor: any.
            key: the same for tensors of equal elements in the same order alone.
        """
        if key not in self._made:
            self._made[key] = self._sketch(tensor)
        return self._made[key]

    def _sketch(self, tensor: Tensor) -> tuple[float, ...]:
        if not tensor.is_floating_point() or not tensor.numel():
            return ()
        flat = tensor.detach().cpu().reshape(-1)
        flat = flat if flat.dtype in SIGNED else flat.float()  # exact, as all that follows
        signed = (flat * self._of_size(len(flat))).double()
        rows, rest = divmod(len(flat), SKETCH_NUMBERS)
        numbers = signed[: len(flat) - rest].view(rows, SKETCH_NUMBERS).sum(0)
        numbers[:rest] += signed[len(flat) - rest :]
        return tuple(float(f"{number:.12g}") for number in numbers.tolist())

    def _of_size(self, size: int) -> Tensor:
        if size > len(self._signs):
            generator = torch.Generator().manual_seed(SKETCH_SEED)
            drawn = torch.randint(2, (size,), generator=generator, dtype=torch.int8)
            self._signs = drawn.float() * 2 - 1
        return self._signs[:size]
