"""The part of the distributed optimizer that updates sharded masters and gathers parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision.engine.engine import Engine
from pytest_precision.errors import expected_but_got, named
from pytest_precision.layouts.megatron.buffers import Bucket, Buffer, BufferSlot
from pytest_precision.layouts.megatron.packing import Parts
from pytest_precision.layouts.megatron.quantized_shards import quantize_shards, take_gathered
from pytest_precision.layouts.megatron.shards import Shard
from pytest_precision.layouts.megatron.stored_model import Options
from pytest_precision.modules.grouped import GroupedLinear
from pytest_precision.modules.parameter import QuantizedParameter, tensors_of
from pytest_precision.optim.fused_adam import FusedAdam, decoupled_owners


class GatheredEngine(Engine):
    """Base class of a training engine that updates shards of weights and all-gathers the results.

    Attributes:
        options: options of the distributed optimizer.
        parts: the logical tensors in each parameter of the model.
        members: the names of the logical tensors in each parameter group.
        buffers: the buffers in which parameters are gathered.
        shards: the shards that this rank updates.
    """

    options: Options
    parts: Parts
    members: list[frozenset[str]]
    buffers: list[Buffer]
    shards: list[Shard]

    @property
    def has_masters(self) -> bool:
        """Return whether fp32 masters are separate from the parameters and from optimizer state."""
        if self.options.masters_in_state:
            return False
        return any(buffer.params.dtype != torch.float32 for buffer in self.buffers)

    def hand_over_gradients(self) -> None:
        """Give the reduced gradients of this rank's shards to the optimizer in fp32."""
        for shard in self.shards:
            if self.options.masters_in_state:  # a bf16 tensor has no gradient in fp32
                shard.master.decoupled_grad = shard.grad.float()  # type: ignore[attr-defined]
            else:
                shard.master.grad = shard.grad.float()

    def clip_grads(self) -> None:
        """Clip the gradients that the optimizer reads."""
        if not self.options.masters_in_state:
            super().clip_grads()
            return
        self.clip(decoupled_owners(master for _, master in self.masters()))

    def clip(self, owners: list[Tensor]) -> None:
        """Clip gradients by their norm over the shards of all ranks.

        Raises:
            ValueError: for another rule than "fp64", which would see this rank's shards only.
        """
        if self.clip_rule != "fp64":
            raise ValueError(
                expected_but_got(
                    "clip='fp64', since gradients are flat shards of every rank,",
                    named("clip", self.clip_rule),
                    f"override clip_grads of {type(self).__name__}, or leave the workload's clip "
                    "out",
                )
            )
        super().clip(owners)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the fp64 norm of the gradients in the shards of all ranks; a collective."""
        squares = torch.zeros((), dtype=torch.float64, device=self.cell.device)
        for gradient in gradients:
            squares += gradient.double().square().sum()
        dist.all_reduce(squares)
        return squares.sqrt()

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the master weight that the optimizer's next step starts from."""
        if not self.options.masters_in_state:
            return parameter
        return cast(FusedAdam, self.optimizer).master(parameter)

    def update_weights(self) -> None:
        """Update the masters; all-gather parameters from them now, or when a forward needs them."""
        super().update_weights()
        self.stage(shared=False)
        if not self.options.overlap_param_gather:
            self.sync_parameters()

    @torch.no_grad()
    def stage(self, *, shared: bool) -> None:
        """Cast or quantize the masters into the memory from which parameters are gathered.

        Args:
            shared: write the memory that is shared with gradients, rather than the other one.
        """
        for shard in self.shards:
            if shard.buffer.shared is not shared or shard.buffer.gathers_bytes:
                continue
            if shard.param.data_ptr() != shard.master.data_ptr():
                shard.param.copy_(shard.master)
        if not shared:
            quantize_shards(self.buffers, self.shards, self.reduce_amax)
        for buffer in self.buffers:
            if buffer.shared is shared:
                for bucket in buffer.buckets:
                    bucket.stale = True

    def sync_parameters(self) -> None:
        """Complete all all-gathers of parameters, so that these are up to date."""
        self.stage(shared=True)
        for buffer in self.buffers:
            for bucket in buffer.buckets:
                self._start(buffer, bucket)
            for bucket in buffer.buckets:
                self._finish(buffer, bucket)

    def _start(self, buffer: Buffer, bucket: Bucket) -> None:
        if bucket.stale and not bucket.works:
            buffer.gather(bucket)

    @torch.no_grad()
    def _finish(self, buffer: Buffer, bucket: Bucket) -> None:
        """Wait for a bucket's all-gather, and fill its quantized parameters from the result."""
        if not bucket.stale:
            return
        buffer.wait(bucket)
        for slot in bucket.slots:
            if buffer.gathers_bytes:
                take_gathered(buffer, slot)
            elif isinstance(slot.parameter, QuantizedParameter):
                slot.parameter.requantize_(buffer.view(slot, buffer.params))
        if buffer.shared:  # gradients will be added to what lies here
            buffer.params[bucket.span.start : bucket.span.stop].zero_()
        bucket.stale = False

    def gather_before_forward(self) -> None:
        """Register forward hooks that wait for a module's buckets and start the next gather."""
        places = {
            id(slot.parameter): (buffer, number)
            for buffer in self.buffers
            for number, bucket in enumerate(buffer.buckets)
            for slot in bucket.slots
        }
        for module in self.model.modules():
            trained = (p for p in module.parameters(recurse=False) if id(p) in places)
            needed = [places[id(p)] for p in trained]
            if needed:
                module.register_forward_pre_hook(
                    partial(self._gather_needed, dict.fromkeys(needed)), prepend=True
                )

    def _gather_needed(self, needed: Iterable[tuple[Buffer, int]], *_: Any) -> None:
        for buffer, number in needed:
            self._start(buffer, buffer.buckets[number])
            # Buffers are in reverse order: the bucket before this one is the next to be read.
            if number > 0:
                self._start(buffer, buffer.buckets[number - 1])
            self._finish(buffer, buffer.buckets[number])

    def evaluate(self) -> None:
        """Complete all all-gathers of parameters, then evaluate the model."""
        self.sync_parameters()
        super().evaluate()

    def save(self, folder: Path) -> None:
        """Complete all all-gathers of parameters, then save a checkpoint."""
        self.sync_parameters()
        super().save(folder)


def outside_buffers(engine: GatheredEngine) -> Iterator[str]:
    """Yield an error text for each parameter or gradient that does not lie in its buffer.

    There is also one where a forward or the optimizer has other tensors than the model.
    """
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
            member[key].data_ptr() == part.data_ptr()
            for member, part in zip(read, place.chunk(len(read)), strict=True)
        )
        for key, place in buffer.resident(slot).items()
    )


def _same(tensor: Tensor, other_tensor: Tensor) -> bool:
    """Return whether two tensors are the same memory with the same elements."""
    return (tensor.data_ptr(), tensor.dtype, tensor.shape) == (
        other_tensor.data_ptr(),
        other_tensor.dtype,
        other_tensor.shape,
    )
