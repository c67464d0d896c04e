"""Conversion of packed or sharded tensors, and of their names, to the original model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from pytest_precision.engine.observation import Span
from pytest_precision.layouts.megatron.packing import Parts, logical_values, split_flat
from pytest_precision.layouts.megatron.shards import Shard


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
        self._shapes = {part.name: part.shape for held in parts.values() for part in held}
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
