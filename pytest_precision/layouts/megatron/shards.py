"""Shards: the elements of each parameter that one rank updates, by name, and their optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.observation import Span
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.megatron.buffers import Buffer, BufferSlot
from pytest_precision.layouts.megatron.packing import Part, Parts, logical_values, split_flat
from pytest_precision.layouts.megatron.stored_model import Arrangement, Options
from pytest_precision.optim.fused_adam import FusedAdam


@dataclass(frozen=True)
class Shard:
    """The elements of one parameter that this rank updates, with their buffer, slot and master.

    Attributes:
        buffer: the buffer in which the parameter has its place.
        slot: that place.
        owned: which of the parameter's elements these are.
        parts: the logical tensors that the parameter holds.
        master: what the optimizer updates, flat, fp32; the parameter's own memory if that is fp32
            too, or where the optimizer keeps the masters in its state.
    """

    buffer: Buffer
    slot: BufferSlot
    owned: Span
    parts: tuple[Part, ...]
    master: Tensor

    @property
    def name(self) -> str:
        """Return the name of the parameter of which this shard holds elements."""
        return self.slot.name

    @property
    def held_parts(self) -> list[Part]:
        """Return those of the original model's tensors of which this shard has elements."""
        return [part for part, _, _ in split_flat(self.parts, self.master, self.owned)]

    @property
    def param(self) -> Tensor:
        """Return a view of this shard's elements in the buffer that is all-gathered."""
        return self.buffer.part(self.slot, self.owned, self.buffer.params)

    @property
    def grad(self) -> Tensor:
        """Return a view of this shard's elements in the gradient buffer."""
        return self.buffer.part(self.slot, self.owned, self.buffer.grads)

    def of(self, whole: Mapping[str, Tensor]) -> Tensor:
        """Cut this shard's elements, flat, out of whole tensors that are given by name."""
        parts = split_flat(self.parts, self.master, self.owned)
        elements = torch.cat(
            [whole[part.name].reshape(-1)[s.start : s.stop] for part, s, _ in parts]
        )
        return elements.to(self.master.device)


def shards_of(buffers: Iterable[Buffer], arrangement: Arrangement, options: Options) -> list[Shard]:
    """Return this rank's shards of all parameters, with masters from the unrounded weights."""
    shards = []
    for buffer in buffers:
        for bucket in buffer.buckets:
            for slot in bucket.slots:
                owned_span = buffer.owned(bucket, slot)
                if owned_span is None:
                    continue
                memory = buffer.part(slot, owned_span, buffer.params)
                if memory.dtype != torch.float32 and not options.masters_in_state:
                    memory = torch.empty_like(memory, dtype=torch.float32)
                shard = Shard(buffer, slot, owned_span, arrangement.parts[slot.name], memory)
                shard.master.copy_(shard.of(arrangement.initial))
                shards.append(shard)
    return shards


def adam_on_masters(
    shards: Iterable[Shard], arrangement: Arrangement, options: Options
) -> torch.optim.Optimizer:
    """Return an Adam optimizer of this rank's masters, in the workload's parameter groups.

    Raises:
        ValueError: for a stored tensor whose logical tensors are in several groups.
    """
    masters = {shard.name: shard.master for shard in shards}
    groups: list[dict[str, Any]] = []
    for group in arrangement.groups:
        params = []
        for name, parts in arrangement.parts.items():
            inside = [part.name in group["params"] for part in parts]
            if any(inside) and not all(inside):
                raise ValueError(
                    expected_but_got(
                        f"all logical tensors in {name} to be in one parameter group",
                        f"{parts[inside.index(False)].name} in another one",
                        "store the tensors of each group separately",
                    )
                )
            if all(inside) and name in masters:
                params.append(masters[name])
        groups.append({**group, "params": params})
    moments = options.exp_avg_dtype, options.exp_avg_sq_dtype
    if moments == (torch.float32, torch.float32) and not options.masters_in_state:
        return torch.optim.AdamW(groups)
    return FusedAdam(
        groups,
        exp_avg_dtype=moments[0],
        exp_avg_sq_dtype=moments[1],
        master_weights=options.masters_in_state,
        master_weight_dtype=options.main_params_dtype,
        store_param_remainders=options.store_param_remainders,
        use_decoupled_grad=options.masters_in_state,
    )


class LogicalNames:
    """Splits packed or sharded tensors into tensors of the original model, and names them.

    Args:
        parts: the logical tensors in each parameter.
        prefixes: prefix of names in the model to the prefix that every layout uses.
        shards: the shards of this rank.
    """

    def __init__(self, parts: Parts, prefixes: Mapping[str, str], shards: Iterable[Shard]) -> None:
        self._parts = parts
        self._prefixes = prefixes
        self._shards = {shard.name: shard for shard in shards}
        self._shapes = {part.name: part.shape for packed in parts.values() for part in packed}
        self._places = {
            part.name: span
            for shard in self._shards.values()
            for part, span, _ in split_flat(shard.parts, shard.master, shard.owned)
        }

    def split(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Split a packed parameter, or this rank's shard, into the original model's tensors."""
        shard = self._shards.get(name)
        if name not in self._parts:
            yield self.of(name), tensor
        elif shard is not None and tensor.shape == shard.master.shape:
            for part, _, piece in split_flat(shard.parts, tensor, shard.owned):
                yield part.name, piece
        else:
            yield from logical_values(self._parts[name], tensor)

    def held(self, name: str) -> list[str]:
        """Return the names of the original model's tensors of which this rank has elements."""
        shard = self._shards.get(name)
        return [name] if shard is None else [part.name for part in shard.held_parts]

    def is_sharded(self, name: str) -> bool:
        """Return whether this rank has a shard of the parameter or packed tensor of this name."""
        return name in self._shards or name in self._places

    def of(self, name: str) -> str:
        """Convert the name of a stored buffer or quantized state to the original model's name."""
        for stored, logical in self._prefixes.items():
            if name == stored or name.startswith(f"{stored}."):
                return logical + name.removeprefix(stored)
        return name

    def place(self, name: str, tensor: Tensor) -> tuple[tuple[int, ...], Span] | None:
        """Return the shape of a whole tensor, and the range of its elements that a shard has.

        The result is None for what is no shard.
        """
        place = self._places.get(name)
        if place is None or tensor.shape != (place.stop - place.start,):
            return None
        return self._shapes[name], place
