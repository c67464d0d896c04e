"""Find in memory the weights that Megatron-core's modules read, with their bytes and scales."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from pytest_precision.formats.transformer_engine.grouped_tensors import is_group, members
from pytest_precision.formats.transformer_engine.storages import family
from pytest_precision.layouts.transformer_engine.shown import operands_of
from pytest_precision.matrix.tensor_key import OperandPart
from pytest_precision.recipes.megatron.placement import is_split
from pytest_precision.recorders.scripts.located import PieceFields

ParameterParts = Mapping[str, Sequence[PieceFields]]
"""Each parameter with the logical tensors in it."""

NamedTensors = Iterable[tuple[str, Tensor]]


class HeldOperand(NamedTuple):
    """The bytes or the scales of a quantized weight, as they lie in memory.

    Attributes:
        name: logical name of the weight.
        operand: which side and field this is.
        tensor: the bytes or scales.
        local: whether other ranks have other parts of the weight, which they quantize alone.
    """

    name: str
    operand: OperandPart
    tensor: Tensor
    local: bool


FUSED = {"linear_fc1": 0, "linear_fc2": -1}
"""Layers of `TEGroupedMLP` to their places in the sequence of fused operations."""


def members_of(weight: Any) -> list[Any]:
    """List the weights that a grouped parameter holds, or an ungrouped parameter alone."""
    return members(weight) if is_group(weight) else [weight]


def read_by(model: nn.Module, prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each parameter that the forward of `module` is about to read.

    Where operations are fused, the experts' layers are not called: an operation of Transformer
    Engine's has a list of parameters of its own.
    """
    parent, _, name = prefix.rpartition(".")
    fused = getattr(model.get_submodule(parent), "_fused_ops", None) if name in FUSED else None
    source = fused[0][FUSED[name]] if fused else module
    yield from source.named_parameters(prefix, recurse=False)


def weights_in_memory(parts: ParameterParts, weights: NamedTensors) -> Iterator[HeldOperand]:
    """Yield the stored bytes and the scales of each quantized weight.

    Args:
        parts: the logical tensors in each parameter.
        weights: parameters, or what was made of them, by names of parameters.
    """
    for name, weight in weights:
        logical = dict.fromkeys(str(part[0]) for part in parts[name])
        for of, member in zip(logical, members_of(weight), strict=True):
            for side, field, tensor in operands_of(member):
                yield HeldOperand(of, OperandPart(side, field), tensor, is_split(parts[name]))


def used(model: nn.Module, parts: ParameterParts) -> Iterator[HeldOperand]:
    """Yield the stored bytes and the scales of the quantized weights that the last forward used.

    They are stored in this way, or kept from one microbatch to the next.
    """
    for prefix, module in model.named_modules():
        yield from weights_in_memory(parts, read_by(model, prefix, module))
        cached = sorted(getattr(module, "_fp8_workspaces", {}).items())
        yield from weights_in_memory(
            parts, ((f"{prefix}.{key}", workspace) for key, workspace in cached)
        )


def paths_of_weights(model: nn.Module) -> set[str]:
    """Return which of `grouped` and `quantized` describe how a model's weights are stored."""
    weights = [*model.parameters()]
    quantized = any(family(part) for weight in weights for part in members_of(weight))
    paths = {"grouped": any(map(is_group, weights)), "quantized": quantized}
    return {path for path, is_used in paths.items() if is_used}


def not_gathered(ddp: Any, model: nn.Module) -> Iterator[str]:
    """Yield a sentence for each weight that lies outside the buffer that all-gathers fill.

    MXFP8 weights are quantized from there, and so have memory of their own.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    for buffer in (*ddp.buffers, *ddp.expert_parallel_buffers):
        for bucket in buffer.buckets if buffer.param_data is not None else ():
            start = bucket.param_data.data_ptr()
            stop = start + bucket.param_data.nbytes
            for parameter in bucket.params_list:
                gathered_tensor = _gathered_tensor(parameter)
                if gathered_tensor is not None and not start <= gathered_tensor.data_ptr() < stop:
                    yield f"{names[parameter]} is not in the memory in which it is gathered"


def _gathered_tensor(parameter: Any) -> Tensor | None:
    """Return the tensor of a parameter that all-gathers fill; None if they fill none."""
    kinds = {family(part) for part in members_of(parameter)}
    if kinds & {"mxfp8", "block"}:
        return None
    if is_group(parameter):
        return parameter.rowwise_data  # type: ignore[no-any-return]
    if kinds == {"nvfp4"}:
        return parameter._rowwise_data  # type: ignore[no-any-return]
    return parameter._data if kinds == {"tensor"} else parameter.data  # type: ignore[no-any-return]
