"""Quantized layouts with a defect each, in a module of its own so that ranks can import them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload, layouts
from pytest_precision.formats import Format, QuantizedTensor
from pytest_precision.layouts import compute_in, resident
from pytest_precision.layouts.replicated import MainGradEngine
from pytest_precision.modules.layer import Layer
from pytest_precision.modules.padding import quantize_padded


def planted_quantized(workload: Workload, cell: Cell, *, kind: type[Engine]) -> Engine:
    """Replicated AdamW with one engine's defect."""
    model, compute = resident(workload.model(cell), cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    return kind(workload, cell, model, optimizer, forward_model=compute_in(model, compute))


def unquantized(workload: Workload, cell: Cell) -> Engine:
    """A quantized cell that computes in bf16."""
    return layouts.adamw(workload, cell.replace(precision="bf16"))


def planted_main_grad(workload: Workload, cell: Cell, *, kind: type[MainGradEngine]) -> Engine:
    """Masters and fp32 gradient buffers with one engine's defect."""
    master = workload.model(cell)
    model, _ = resident(deepcopy(master), cell)
    return kind(workload, cell, model, master)


def layers(model: nn.Module) -> Iterator[Layer]:
    return (module for module in model.modules() if isinstance(module, Layer))


class StaleWeights(Engine):
    """The bytes of the first step are used for the whole run."""

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        for layer in layers(self.model):
            layer.is_first_microbatch = not layer.used_weights
        return super().microbatch_context(last=last)


@dataclass
class ColumnwiseOfRowwise(Format):
    """The columnwise operand is quantized from the values of the rowwise one."""

    format: Format

    @property
    def name(self) -> str:
        return self.format.name

    def quantize(self, x: Tensor, random_bits: Any = None, *, usage: Any = "both") -> Any:
        rowwise = quantize_padded(self.format, x, random_bits)
        again = quantize_padded(self.format, rowwise.dequantize(x.dtype), random_bits)
        operands = {"rowwise": rowwise.rowwise, "columnwise": again.columnwise}
        return QuantizedTensor(rowwise.format, rowwise.shape, operands)


class ColumnwiseWeights(Engine):
    """So of every weight."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for layer in layers(self.model):
            for quantizers in layer.quantizers:
                quantizers.weight = ColumnwiseOfRowwise(quantizers.weight)


class ColumnwiseInputs(Engine):
    """So of every input, which only the weight gradient reads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for layer in layers(self.model):
            for quantizers in layer.quantizers:
                quantizers.input = ColumnwiseOfRowwise(quantizers.input)


class LocalAmaxes(Engine):
    """Delayed scaling by each rank's own amaxes."""

    def reduce_amax(self, amaxes: Tensor) -> Tensor:
        return amaxes


class SameBits(Engine):
    """Stochastic rounding with the same random bits in every step."""

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        for layer in layers(self.model):
            layer.step = 1
        return super().microbatch_context(last=last)


class ForgetsAMicrobatch(MainGradEngine):
    """A bias misses the gradient of microbatch 3."""

    def microbatch_done(self) -> None:
        if self.microbatch == 3:
            self.model.get_parameter("blocks.1.linear.bias").grad.zero_()
        super().microbatch_done()


class Doubles(MainGradEngine):
    """Gradients are twice as large as they should be."""

    def backward(self, loss: Tensor) -> None:
        super().backward(2 * loss)


class ClipsScaled(Engine):
    """Gradients are clipped before they are unscaled."""

    def clip(self, owners: list[Tensor]) -> None:
        scaler, self.scaler = self.scaler, None
        super().clip(owners)
        self.scaler = scaler
        for owner in owners:
            owner.grad.div_(scaler.scale)
