"""Sketches: a few numbers of a tensor, of which the relative error of two tensors can be told.

Elements are added up with random signs, so that the difference of two sketches is the sketch of the
difference, and its norm is that of the difference up to a fourth or so.
"""

from __future__ import annotations

import torch
from torch import Tensor

SKETCH_NUMBERS = 16
"""Numbers of a sketch."""

SKETCH_SEED = 20


class Sketches:
    """Makes sketches, with the same signs in every process."""

    def __init__(self) -> None:
        self._signs = torch.empty(0, dtype=torch.float64)

    def of(self, tensor: Tensor) -> tuple[float, ...]:
        """Return the sketch of a tensor of floating point numbers; nothing of another one."""
        if not tensor.is_floating_point() or not tensor.numel():
            return ()
        flat = tensor.detach().cpu().double().reshape(-1)
        size = -(-len(flat) // SKETCH_NUMBERS) * SKETCH_NUMBERS
        signed = torch.zeros(size, dtype=torch.float64)
        signed[: len(flat)] = flat * self._of_size(len(flat))
        return tuple(
            float(f"{number:.12g}") for number in signed.view(-1, SKETCH_NUMBERS).sum(0).tolist()
        )

    def _of_size(self, size: int) -> Tensor:
        if size > len(self._signs):
            generator = torch.Generator().manual_seed(SKETCH_SEED)
            drawn = torch.randint(2, (size,), generator=generator, dtype=torch.int8)
            self._signs = drawn.double() * 2 - 1
        return self._signs[:size]
