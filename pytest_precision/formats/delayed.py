"""fp8 with one fp32 scale per tensor, from the amaxes of earlier steps (delayed scaling)."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Literal

import torch

from pytest_precision.formats.elements import ELEMENT_OF_NAME, element_named
from pytest_precision.formats.format import Makers
from pytest_precision.formats.inputs import Usage, check_options
from pytest_precision.formats.per_tensor import PerTensor, quantize_by
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.formats.scaling import FP32_MAXIMUM, ReduceAmax

MAXIMUM_EXPONENT = 127
"""The exponent of the largest power of two in fp32."""


class DelayedScaling(PerTensor):
    """Per-tensor fp8 with delayed scaling; one instance holds the state of one tensor.

    `quantize` casts with the current scale and records the amax in row 0 of the history. Row 0
    holds the largest amax of all calls since the last update: microbatches, and evaluations too. An
    evaluation calls `quantize` but never `update`, so it can change the scale of later training
    steps: with this format, train-eval-train is not train-train bit for bit.

    Attributes:
        name: name of the format.
        element: e4m3 or e5m2.
        scale: fp32 [1], the factor of the next cast; it starts at 1.
        history: fp32 [length], amaxes; row 0 is being recorded, the last row is the newest.
    """

    def __init__(
        self,
        *,
        name: str = "fp8_delayed",
        element: str = "e4m3",
        algorithm: Literal["max", "most_recent"] = "max",
        history_length: int = 1024,
        margin: int = 0,
        update: Literal["fused", "unfused"] = "fused",
        reduce_amax: ReduceAmax | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Start with a scale of 1 and an empty history.

        Args:
            name: name of the format.
            element: "e4m3" or "e5m2".
            algorithm: whether the scale is computed from the "max" of the history, or from its
                "most_recent" entry.
            history_length: for how many updates an amax is remembered.
            margin: the scale is smaller by a factor of 2**margin.
            update: "fused" computes as the kernel does; "unfused" as the Python code that the
                environment variable NVTE_UNFUSED_FP8_UPDATE enables: that code also rolls the
                history after an amax of 0, and multiplies by a reciprocal instead of dividing.
            reduce_amax: MAX over the ranks that share the scale; None if no other rank does.
            device: device of the state.

        Raises:
            ValueError: `element`, `algorithm`, `update` or `device` is unknown, `history_length`
                is below 1, `margin` is not an integer, or `reduce_amax` cannot be called.
        """
        check_options(
            {
                "algorithm": algorithm,
                "history_length": history_length,
                "margin": margin,
                "update": update,
                "reduce_amax": reduce_amax,
                "device": device,
            }
        )
        self.name = name
        self.scale = torch.ones(1, device=device, dtype=torch.float32)
        self.history = torch.zeros(history_length, device=device, dtype=torch.float32)
        self.element = element_named(element)
        self._algorithm = algorithm
        self._margin = margin
        self._update = update
        self._reduce_amax = reduce_amax

    @property
    def has_state(self) -> bool:
        """Whether a cast depends on earlier casts: always, since their amaxes give the scale."""
        return True

    def _quantized(self, x: torch.Tensor, amax: torch.Tensor, usage: Usage) -> QuantizedTensor:
        """Quantize a matrix with the scale of earlier steps, and record its amax."""
        quantized = quantize_by(self.name, x, self.scale, amax, self.element, usage)
        self.record(amax)
        return quantized

    def record(self, amax: torch.Tensor) -> None:
        """Record the amax, fp32 [1], of a matrix for the next update; a NaN is ignored."""
        torch.fmax(self.history[:1], amax, out=self.history[:1])

    def update(self) -> None:
        """Advance the amax history by one step, and compute the scale of the next step from it.

        Call it once per training step: after the forward pass for inputs and weights, after the
        backward pass for gradients. While the amax that the scale is computed from is infinite, the
        scale stays as it is.
        """
        newest_tensor = self.history[:1].clone()
        if self._reduce_amax is not None:
            reduced = self._reduce_amax(newest_tensor)
            newest_tensor = torch.where(reduced != 0, reduced, newest_tensor)
            self.history[:1] = newest_tensor
        if self._update == "fused" and float(newest_tensor) == 0:
            return
        amax = self.history.amax(0, keepdim=True) if self._algorithm == "max" else newest_tensor
        if float(amax) > 0 and bool(amax.isfinite()):
            scale = self._scale(amax)
            self.scale.copy_(scale.masked_fill_(scale.isinf(), FP32_MAXIMUM))
        self.history.copy_(self.history.roll(-1))
        self.history[:1] = 0.0

    def _scale(self, amax: torch.Tensor) -> torch.Tensor:
        # In fp32, as in the kernel: a margin beyond fp32's range makes the scale 0 or infinite.
        maximum = self.element.maximum
        power = _power_of_two(-self._margin)
        if self._update == "fused":
            return torch.full_like(amax, maximum).mul_(power).div_(amax)
        return amax.reciprocal().mul_(maximum).mul_(power)


def _power_of_two(exponent: int) -> float:
    return inf if exponent > MAXIMUM_EXPONENT else 2.0**exponent


FORMATS: Makers = {
    "fp8_delayed": DelayedScaling,
    **{
        f"fp8_delayed_{element}": partial(DelayedScaling, element=element)
        for element in ELEMENT_OF_NAME
    },
}
