"""A rank's part of a tensor at one moment, with its kind, its name and its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.distributed import is_dtensor, local_chunk
from pytest_precision.engine.kinds import LOCAL_KINDS
from pytest_precision.engine.readable import expect_readable, unreadable
from pytest_precision.errors import expected_but_got


@dataclass(frozen=True, slots=True)
class Chunk:
    """A block of an unsharded tensor, such as a DTensor's local shard.

    Attributes:
        offsets: where it starts in each dimension.
        sizes: how long it is in each dimension.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The elements from `start` to before `stop` of a flattened, unsharded tensor."""

    start: int
    stop: int


Place = Chunk | Span


@dataclass(frozen=True, slots=True)
class Observation:
    """A rank's shard of one tensor of the model, its kind, name and place, at one moment.

    Attributes:
        kind: one of `KINDS`, or the optimizer's own name of a state tensor.
        name: the logical tensor's name, the same in every layout of the same model.
        tensor: this rank's piece, of any dtype; on the meta device where only its digest was kept.
        shape: shape of the logical tensor.
        place: which part of the logical tensor the piece holds.
        local: every rank has a logical tensor of its own under this name (a partial sum of
            gradients, a generator's state): such tensors are neither pieced together nor replicas.
            So are all tensors of a kind that is local.
        digest: the digest that a trace keeps, where it was taken at once; else empty.
    """

    kind: str
    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    place: Place
    local: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        if self.kind in LOCAL_KINDS:
            object.__setattr__(self, "local", True)

    def shows_as(self, other_observation: Observation) -> bool:
        """Return whether another observation, of any name, is one of this very tensor."""
        return self.tensor is other_observation.tensor and (
            (self.kind, self.shape, self.place, self.local, self.digest)
            == (
                other_observation.kind,
                other_observation.shape,
                other_observation.place,
                other_observation.local,
                other_observation.digest,
            )
        )

    def of_name(self, name: str) -> Observation:
        """Return this observation under another name."""
        return Observation(
            self.kind, name, self.tensor, self.shape, self.place, self.local, self.digest
        )

    def with_tensor(self, tensor: Tensor, digest: str = "") -> Observation:
        """Return this observation with another tensor of its dtype and shape.

        Args:
            tensor: a copy, or one on the meta device with the digest of what it was.
            digest: empty for a copy.
        """
        return Observation(self.kind, self.name, tensor, self.shape, self.place, self.local, digest)


def cloned(observation: Observation) -> Observation:
    """Return an observation with its tensor copied to the CPU, safe from later writes.

    The copy is on the host: a device has little more memory than the run itself needs.
    """
    return observation.with_tensor(observation.tensor.to("cpu", copy=True))


def whole(kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
    """Return an observation of a tensor that this rank holds whole.

    Args:
        kind: see `Observation`.
        name: name of the logical tensor.
        tensor: the whole logical tensor.
        local: whether every rank has one of its own under this name.

    Raises:
        ValueError: for a tensor that cannot be read.
    """
    expect_readable(kind, name, tensor)
    shape = tuple(tensor.shape)
    return Observation(kind, name, tensor, shape, Chunk((0,) * len(shape), shape), local)


def piece(kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
    """Return an observation of a DTensor's local shard, or of a plain tensor as a whole.

    Raises:
        ValueError: for a DTensor that is a partial sum, which is no part of the logical tensor.
    """
    if not is_dtensor(tensor):
        return whole(kind, name, tensor, local=local)
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(
            expected_but_got(
                f"{kind} {name!r} to be sharded or replicated",
                tensor.placements,
                "reduce it before it is observed",
            )
        )
    place = Chunk(*local_chunk(tensor))
    return Observation(kind, name, tensor.to_local(), tuple(tensor.shape), place, local)


def index_within(piece: Observation, place: int) -> tuple[int, ...]:
    """Return the index in the unsharded tensor of an element of a flattened shard."""
    if isinstance(piece.place, Chunk):
        inside = torch.unravel_index(torch.tensor(place), piece.place.sizes)
        return tuple(
            int(index) + offset for index, offset in zip(inside, piece.place.offsets, strict=True)
        )
    whole = torch.unravel_index(torch.tensor(piece.place.start + place), piece.shape)
    return tuple(map(int, whole))


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for the tensors and numbers in a value of optimizer state.

    Numbers become 0-dim tensors in Python's own precision; None holds nothing. What cannot be shown
    as a tensor is left out; `unshown_in` names it.
    """
    return ((path, leaf) for path, leaf in _leaves(value) if isinstance(leaf, Tensor))


def unshown_in(value: Any) -> Iterator[str]:
    """Yield a description of each part of an optimizer's state that cannot become a tensor."""
    return (leaf for _, leaf in _leaves(value) if isinstance(leaf, str))


def _leaves(value: Any) -> Iterator[tuple[str, Tensor | str]]:
    """Yield (path, tensor) for each tensor or number in a nested value.

    What cannot become a tensor is yielded as a description of it.
    """
    if isinstance(value, Tensor):
        yield "", unreadable(value) or value
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield "", "an integer of more than 64 bits"
    elif isinstance(value, (bool, int)):
        yield "", torch.tensor(value)
    elif isinstance(value, float):
        yield "", torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, (list, tuple, deque, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in items:
            for path, leaf in _leaves(entry):
                yield f".{key}{path}", leaf
    elif value is not None:
        yield "", f"a {type(value).__name__}"
