"""The number formats of a linear layer's operands, and the state of delayed scaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from pytest_precision.engine.quantizing import StepScaling
from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats.delayed import DelayedScaling
from pytest_precision.formats.format import Format, Reducible
from pytest_precision.formats.inputs import Usage
from pytest_precision.formats.native import Native
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.formats.registry import by_name, recipe
from pytest_precision.matrix.tensor_key import TensorKey


class DelayedScalingState(StepScaling, Reducible):
    """Delayed scaling of one operand, with scale and amax history as a module's buffers.

    Attributes:
        name: name of the format.
        scale: fp32 [1].
        history: fp32 [length]; row 0 is being recorded.
        native: whether Transformer Engine casts; scale and history are updated here in any case.
        of_primary_weight: whether the owner of the weight calls `update` whenever it quantizes, as
            Transformer Engine does after the optimizer step; `finish_step` then does not.
    """

    scale: torch.Tensor
    history: torch.Tensor

    def __init__(self, format: DelayedScaling, *, native: bool = False) -> None:
        super().__init__()
        self.native = native
        self.name = format.name
        self.of_primary_weight = False
        self._format = format
        self.register_buffer("scale", format.scale)
        self.register_buffer("history", format.history)

    @property
    def has_state(self) -> bool:
        """Whether a cast depends on earlier casts: always, since their amaxes give the scale."""
        return True

    def leave_updates_to_owner(self) -> None:
        """Mark this state as updated when its weight is quantized; `finish_step` then skips it."""
        self.of_primary_weight = True

    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Cast a matrix to fp8 with the scale of earlier steps, and record its amax."""
        current = self._current()
        caster = Native(current) if self.native else current
        return caster.quantize(x, random_bits, usage=usage)

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the amax of a matrix, fp32 [1]."""
        return self._current().amaxes(x)

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Cast to fp8 with the scale of earlier steps, and record `amaxes`, fp32 [1]."""
        return self._current().quantize_with(x, amaxes, usage=usage)

    def update(self) -> None:
        """Advance the amax history by one step, and compute the scale of the next step from it."""
        self._current().update()

    def recorded_amax(self) -> torch.Tensor:
        """Return row 0 of the history, fp32 [1]."""
        return self.history[:1]

    def quantized_state(self, name: str) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield the scale, the finished rows of the history, and the row that is being recorded."""
        key = TensorKey(name, "history")
        yield "scale", name, self.scale
        yield "amax", key.name("amax"), self.history[1:]
        yield "recorded_amax", key.name("recorded_amax"), self.history[:1]

    def _current(self) -> DelayedScaling:
        # Moving a module to another device replaces its buffers.
        self._format.scale = self.scale
        self._format.history = self.history
        return self._format


class Quantizers(nn.Module):
    """The number formats of the input, the weight and the output gradient of one linear layer.

    Attributes:
        input: format of the layer's input.
        weight: format of its weight.
        gradient: format of the gradient of its output.
    """

    input: Format
    weight: Format
    gradient: Format

    def __init__(
        self,
        precision: str,
        device: torch.device | str = "cpu",
        backend: str = "emulated",
    ) -> None:
        """Make the number formats that a precision has for input, weight and output gradient.

        Args:
            precision: a quantized precision of cells.
            device: device of the state of delayed scaling.
            backend: `emulated`, or `native` to have Transformer Engine quantize.

        Raises:
            ValueError: the precision has no recipe, or the backend is unknown.
        """
        if backend not in ("emulated", "native"):
            raise ValueError(
                expected_but_got(
                    "emulated or native",
                    named("backend", backend),
                    "pass cell.backend of the layout's cell, which is one of them",
                )
            )
        super().__init__()
        native = backend == "native"
        formats = recipe(precision)
        for operand in ("input", "weight", "gradient"):
            format = by_name(getattr(formats, operand))
            if format.has_state:  # it goes into buffers, which are saved and moved with the model
                state = DelayedScalingState(cast(DelayedScaling, format), native=native)
                setattr(self, operand, state.to(device))
            else:
                setattr(self, operand, Native(format) if native else format)
