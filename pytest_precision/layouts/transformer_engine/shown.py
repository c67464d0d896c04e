"""What Transformer Engine's tensors and layers show: bytes, scales and amaxes by logical names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision.layouts.transformer_engine.layers import PaddedLayer, padded_layers
from pytest_precision.te.groups import members
from pytest_precision.te.storages import SIDES, family, operand

KINDS = {"data": "quantized", "scale": "scale", "amax": "amax"}


def values_of(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, quantized or not; of a group, one matrix per member."""
    if hasattr(tensor, "split_into_quantized_tensors"):
        return torch.stack([values_of(part) for part in members(tensor)])
    return tensor.dequantize() if hasattr(tensor, "_quantizer") else tensor


def is_grouped(padded: PaddedLayer) -> bool:
    """Return whether a single parameter holds all weights of a layer."""
    return bool(getattr(padded.layer, "single_grouped_weight", False))


def weights_of(padded: PaddedLayer) -> list[Any]:
    """Return the parameters of a layer's weights, each by itself."""
    layer = padded.layer
    if is_grouped(padded):
        return members(layer.weight)
    if hasattr(layer, "num_gemms"):
        return [getattr(layer, f"weight{number}") for number in range(layer.num_gemms)]
    return [layer.weight]


def is_quantized(padded: PaddedLayer) -> bool:
    """Return whether a layer stores its weights quantized."""
    return any(family(weight) for weight in weights_of(padded))


def used_weights(padded: PaddedLayer) -> list[Any]:
    """Return what the last forward multiplied by: the weights, or what is cached of them."""
    cached = list(getattr(padded.layer, "_fp8_workspaces", {}).values())
    if not cached:
        return weights_of(padded)
    return [one for held in cached for one in ([held] if family(held) else members(held))]


def quantized_state(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield kind, name and tensor of all quantized state that outlives a step."""
    for padded in padded_layers(model):
        for name, weight in zip(padded.logical, weights_of(padded), strict=True):
            for side, field, tensor in _operands(weight):
                yield KINDS[field], f"{name}.weight.{side}", tensor
        for direction in ("scaling_fwd", "scaling_bwd"):
            state = padded.layer.fp8_meta.get(direction)
            history = getattr(state, "amax_history", None)
            if history is not None:
                name = f"{padded.logical[0]}.{direction}"
                yield "scale", name, state.scale
                yield "amax", f"{name}.history", history[1:]
                yield "recorded_amax", f"{name}.history", history[:1]


def used_quantized(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of the quantized weights that the last forward multiplied by."""
    for padded in padded_layers(model):
        for name, weight in zip(padded.logical, used_weights(padded), strict=True):
            for side, field, tensor in _operands(weight):
                yield f"{name}.weight.{side}.{field}", tensor


def _operands(weight: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Yield side, field and tensor of each operand of a weight; nothing of one in bf16."""
    for side in SIDES if family(weight) else ():
        held = operand(weight, side)
        if held is not None:
            both = family(weight) == "tensor" and side == "columnwise"
            for field in KINDS:
                tensor = getattr(held, field)
                if both and field == "data" and not held.storage.transposed:
                    tensor = tensor.t().contiguous()  # one piece of memory serves both orders
                if tensor is not None:
                    yield side, field, tensor
