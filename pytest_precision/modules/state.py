"""Listing of a model's quantized tensors: state that outlives a step, and weights in use."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.matrix.tensor_key import OperandPart, TensorKey
from pytest_precision.modules.layer import Layer
from pytest_precision.modules.parameter import quantized_parameters, tensors_of
from pytest_precision.modules.slots import DelayedScalingState

_KINDS = {"data": "quantized", "scale": "scale", "amax": "amax"}


def quantized_state(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (kind, name, tensor) of quantized bytes, scales and amaxes kept between steps.

    A quantized parameter has bytes (kind `quantized`), scales (`scale`) and amaxes (`amax`), with
    names such as `up.weight.rowwise`. A state of delayed scaling has a `scale`; a history (`amax`),
    which is the same on all ranks; and the amax that is being recorded (`recorded_amax`), which is
    this rank's own, and which an evaluation changes too.

    The experts of a single grouped weight have the names of separate weights: `up.weight3.rowwise`.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, DelayedScalingState):
            yield "scale", prefix, module.scale
            key = TensorKey(prefix, "history")
            yield "amax", key.name("amax"), module.history[1:]
            yield "recorded_amax", key.name("recorded_amax"), module.history[:1]
        for name, parameter in quantized_parameters(module):
            for place, member in enumerate(parameter.members):
                number = "" if parameter.dim() == 2 else str(place)
                yield from _shown(f"{prefix}.{name}{number}".lstrip("."), member)


def used_quantized(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of the quantized weights that the last forward multiplied by.

    A name is such as `up.weight.rowwise.data`. Both operands are included, since the backward of
    that forward reads the columnwise one. Before the first forward there are none, and a layer in
    bf16 has none.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, Layer):
            for place, used in enumerate(module.used_weights):
                number = "" if isinstance(module, nn.Linear) else str(place)
                for key, tensor in tensors_of(used):
                    weight = f"{prefix}.weight{number}".lstrip(".")
                    yield TensorKey(weight, key).name("used_quantized"), tensor


def _shown(name: str, quantized: QuantizedTensor) -> Iterator[tuple[str, str, Tensor]]:
    for key, tensor in tensors_of(quantized):
        side, field = OperandPart.of(key)
        yield _KINDS[field], TensorKey(name, side).name(_KINDS[field]), tensor
