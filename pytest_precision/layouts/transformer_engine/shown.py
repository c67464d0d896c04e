"""List the bytes, scales and amaxes in Transformer Engine's tensors and layers, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from pytest_precision.formats.transformer_engine.grouped_tensors import is_group, members
from pytest_precision.formats.transformer_engine.storages import SIDES, family, operand
from pytest_precision.layouts.transformer_engine.layers import EngineLayer
from pytest_precision.matrix.tensor_key import OperandPart, TensorKey

SHOWN_KINDS = {"data": "quantized", "scale": "scale", "amax": "amax"}


def values_of(tensor: Tensor) -> Tensor:
    """Return a tensor's values, dequantized if it is quantized, and stacked if it is grouped."""
    if isinstance(tensor, DTensor):
        return (
            sharded_as(tensor, values_of(tensor.to_local()))
            if is_quantized_shard(tensor)
            else tensor
        )
    if is_group(tensor):
        return torch.stack([values_of(part) for part in members(tensor)])
    return tensor.dequantize() if hasattr(tensor, "_quantizer") else tensor


def is_quantized_shard(tensor: Any) -> bool:
    """Return whether a tensor is a quantized shard of `fully_shard`."""
    return isinstance(tensor, DTensor) and bool(family(tensor.to_local()))


def sharded_as(weight: DTensor, local_tensor: Tensor, *, transposed: bool = False) -> DTensor:
    """Return a DTensor of this rank's rows of a weight, or of columns of its transpose."""
    shape = weight.shape[::-1] if transposed else weight.shape
    return DTensor.from_local(
        local_tensor.contiguous(),
        weight.device_mesh,
        [Shard(1 if transposed else 0)],
        run_check=False,
        shape=shape,
        stride=(shape[1], 1),
    )


def codes_of(state: Any) -> Tensor:
    """Return the stored bytes of an fp8 optimizer moment, and any other tensor unchanged."""
    codes: Tensor = state._data if family(state) else state
    return codes


def state_scales(optimizer: Any, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield name and scale of the fp8 and fp16 moments of a parameter in `FusedAdam`."""
    for name, stored in optimizer.state.get(parameter, {}).items():
        if family(stored):
            yield name, stored._scale_inv.view(())
        elif stored.dtype is torch.float16:
            yield name, optimizer._scales[parameter][name].view(())


def is_grouped(part: EngineLayer) -> bool:
    """Return whether one parameter of a layer holds the weights of several experts."""
    return any(len(names) > 1 for _, names in part.weights)


def is_quantized(part: EngineLayer) -> bool:
    """Return whether a layer stores its weights quantized."""
    stored = (weight for _, weight in stored_weights(part))
    return any(family(weight) or is_quantized_shard(weight) for weight in stored)


def stored_weights(part: EngineLayer) -> Iterator[tuple[str, Any]]:
    """Yield (name in the original model, tensor) of each weight of a layer's GEMMs."""
    for te_name, names in part.weights:
        yield from zip(names, _each(getattr(part.layer, te_name), names), strict=True)


def used_weights(part: EngineLayer) -> Iterator[tuple[str, Any]]:
    """Yield name and tensor of the weights that the last forward used.

    These are cached copies where there are any, else the stored weights.
    """
    cached = part.layer._fp8_workspaces
    for te_name, names in part.weights:
        weight = cached.get(te_name, getattr(part.layer, te_name))
        yield from zip(names, _each(weight, names), strict=True)


def te_quantized_state(parts: Iterable[EngineLayer]) -> Iterator[tuple[str, str, Tensor]]:
    """Yield kind, name and tensor of the quantized weights and scaling state kept between steps."""
    for part in parts:
        for name, weight in stored_weights(part):
            for side, field, tensor in operands_of(weight):
                yield SHOWN_KINDS[field], TensorKey(name, side).name(SHOWN_KINDS[field]), tensor
        for name, scale, history in _delayed(part):
            yield "scale", name, scale
            key = TensorKey(name, "history")
            yield "amax", key.name("amax"), history[1:]
            yield "recorded_amax", key.name("recorded_amax"), history[:1]


def delayed_state(parts: Iterable[EngineLayer]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of delayed scaling's newest amaxes and next scales."""
    for part in parts:
        for name, scale, history in _delayed(part):
            yield f"{name}.amax", history[-1]
            yield f"{name}.scale", scale


def _delayed(part: EngineLayer) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, scales and amax history of each GEMM's operands in delayed scaling."""
    gemms = [name for _, names in part.weights for name in names]
    for direction in ("scaling_fwd", "scaling_bwd"):
        state = part.layer.fp8_meta.get(direction)
        if getattr(state, "amax_history", None) is not None:
            scales = state.scale.chunk(len(gemms))
            histories = state.amax_history.chunk(len(gemms), dim=1)
            for gemm, scale, history in zip(gemms, scales, histories, strict=True):
                yield f"{gemm.removesuffix('.weight')}.{direction}", scale, history


def te_used_quantized(parts: Iterable[EngineLayer]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of the quantized weights that the last forward used."""
    for part in parts:
        for name, weight in used_weights(part):
            for side, field, tensor in operands_of(weight):
                key = TensorKey(name, OperandPart(side, field).part)
                yield key.name("used_quantized"), tensor


def _each(weight: Any, names: tuple[str, ...]) -> list[Any]:
    """List the weights in a parameter or in a cached copy of it: one, or those of a group."""
    return [weight] if len(names) == 1 else members(weight)


def operands_of(weight: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (rowwise or columnwise, field, tensor) for a quantized weight's bytes, scales, amaxes.

    It yields nothing for a bf16 weight.
    """
    if is_quantized_shard(weight):
        for side, field, tensor in operands_of(weight.to_local()):
            yield side, field, _of_shard(weight, side, field, tensor)
        return
    for side in SIDES if family(weight) else ():
        side_operand = operand(weight, side)
        if side_operand is not None:
            both = family(weight) == "tensor" and side == "columnwise"
            for field in SHOWN_KINDS:
                tensor = getattr(side_operand, field)
                if both and field == "data" and not side_operand.storage.transposed:
                    tensor = tensor.t().contiguous()  # one piece of memory serves both orders
                if tensor is not None:
                    yield side, field, tensor


def _of_shard(weight: DTensor, side: str, field: str, tensor: Tensor) -> Tensor:
    """Return a shard's bytes or block scales as a DTensor, a per-tensor scale or amax unchanged."""
    kind = family(weight.to_local())
    transposed = side == "columnwise" and kind != "mxfp8"
    if kind == "tensor" and field == "data":
        return sharded_as(weight, tensor, transposed=transposed)
    if kind == "tensor" or field == "amax":
        return tensor  # all ranks have the scale, or the amax, of the whole weight
    placed_shards = [Shard(1 if transposed else 0)]  # whole blocks, and as many on each rank
    return DTensor.from_local(
        tensor.contiguous(), weight.device_mesh, placed_shards, run_check=False
    )
