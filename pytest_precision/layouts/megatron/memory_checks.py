"""Check that the tensors of a distributed optimizer lie in the memory in which they must lie."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pytest_precision.layouts.megatron.buffers import Buffer, BufferSlot
from pytest_precision.layouts.megatron.gathered import GatheredEngine
from pytest_precision.modules.grouped import GroupedLinear
from pytest_precision.modules.parameter import QuantizedParameter, tensors_of


def outside_buffers(engine: GatheredEngine) -> Iterator[str]:
    """Yield, in words, what is stored elsewhere than it must be."""
    owned = {id(p): name for name, p in engine.model.named_parameters()}
    for buffer in engine.buffers:
        for slot in buffer.slots:
            if id(slot.parameter) not in owned:
                yield f"{slot.name} of the model is not the parameter that the optimizer updates"
            if not _in_buffer(buffer, slot):
                yield f"parameter {slot.name} does not lie in its buffer"
            gradient = engine.gradient(slot.parameter)
            if gradient is None or not _same(gradient, buffer.view(slot, buffer.grads)):
                yield f"main_grad of {slot.name} does not lie in its buffer"
    for prefix, module in engine.model.named_modules():
        if isinstance(module, GroupedLinear):
            for name, read in {**module.read("weight"), **module.read("bias")}.items():
                if read is not getattr(module, name):
                    yield f"the forward reads other memory than {prefix}.{name} has"
    masters = {id(shard.master) for shard in engine.shards}
    for group in engine.optimizer.param_groups:
        if any(id(master) not in masters for master in group["params"]):
            yield "the optimizer holds tensors that are no masters of the model's parameters"


def _in_buffer(buffer: Buffer, slot: BufferSlot) -> bool:
    if not isinstance(slot.parameter, QuantizedParameter):
        return _same(slot.parameter, buffer.view(slot, buffer.params))
    read = [dict(tensors_of(member)) for member in slot.parameter.members]  # by a GEMM each
    return all(
        _same(slot.parameter.stored[key], place)
        and all(
            member[key].data_ptr() == own.data_ptr()
            for member, own in zip(read, place.chunk(len(read)), strict=True)
        )
        for key, place in buffer.resident(slot).items()
    )


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same elements of the same memory."""
    return (one.data_ptr(), one.dtype, one.shape) == (other.data_ptr(), other.dtype, other.shape)
