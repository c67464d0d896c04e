"""What quantized modules show: the state that outlives a step, and what a forward used."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.modules.layer import Layer
from pytest_precision.modules.parameter import quantized_parameters, tensors_of
from pytest_precision.modules.slots import DelayedScalingState

_KINDS = {"data": "quantized", "scale": "scale", "amax": "amax"}


def quantized_state(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """The quantized state of a model that outlives a step, as (kind, name, tensor).

    Of each quantized parameter its bytes (`quantized`), scales (`scale`) and amaxes (`amax`), named
    as `up.weight.rowwise`. Of each slot of delayed scaling its `scale`; its history (`amax`),
    which is the same on all ranks; and the amax that is being recorded (`recorded_amax`), which is
    this rank's own, and which an evaluation moves too.

    A single grouped weight shows its experts as discrete ones do: `up.weight3.rowwise`.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, DelayedScalingState):
            yield "scale", prefix, module.scale
            yield "amax", f"{prefix}.history", module.history[1:]
            yield "recorded_amax", f"{prefix}.history", module.history[:1]
        for name, parameter in quantized_parameters(module):
            for place, member in enumerate(parameter.members):
                number = "" if parameter.dim() == 2 else str(place)
                yield from _shown(f"{prefix}.{name}{number}".lstrip("."), member)


def used_quantized(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The quantized weights that the last forward multiplied by: `up.weight.rowwise.data`.

    Both operands are shown: the backward of that forward reads the columnwise one. Nothing is
    shown before the first forward, nor of a layer in bf16.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, Layer):
            for place, used in enumerate(module.used_weights):
                number = "" if isinstance(module, nn.Linear) else str(place)
                for key, tensor in tensors_of(used):
                    yield f"{prefix}.weight{number}.{key}".lstrip("."), tensor


def _shown(name: str, quantized: QuantizedTensor) -> Iterator[tuple[str, str, Tensor]]:
    for key, tensor in tensors_of(quantized):
        side, field = key.split(".")
        yield _KINDS[field], f"{name}.{side}", tensor
