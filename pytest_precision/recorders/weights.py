"""List the tensors that an optimizer updates, this rank's shards of them, and copies of those.

A master that is read back from its rounded weight between two updates loses its low bits each time,
although each update by itself is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Observation, index_within
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.trace.read_back import ReadBack

MEASURED_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Elements measured at once: memory is bounded, and kernels on a GPU are large."""

IN_CACHE = 1 << 15
"""Elements whose temporaries in fp64 stay in the cache of a core.

They are small enough to be reused: fresh pages cost more than the arithmetic.
"""


ROUNDED_TO = (torch.bfloat16, torch.float16)
"""Dtypes from which a high-precision weight may have been read back."""

LEAST_ROUNDED = 8
"""Elements of a shard that must have lost bits: one number may lie on a grid by chance.

A smaller shard is not compared.
"""


def measured_at_once(device: torch.device) -> int:
    """Return how many elements are measured at once on a device; any accelerator's as on a GPU."""
    return MEASURED_AT_ONCE.get(device.type, MEASURED_AT_ONCE["cuda"])


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Return flat tensors as one; one alone as it is, since a copy of a large one takes long."""
    return tensors[0] if len(tensors) == 1 else torch.cat([*tensors])


class Elements(Protocol):
    """Some elements of tensors, which are computed together with others."""

    @property
    def size(self) -> int:
        """Return their number."""


SomeElements = TypeVar("SomeElements", bound=Elements)


def lists_of_at_most(parts: Iterable[SomeElements], most: int) -> Iterator[list[SomeElements]]:
    """Yield lists of parts of at most so many elements, or of one, to be computed at once."""
    listed_elements: list[SomeElements] = []
    elements = 0
    for part in parts:
        if listed_elements and elements + part.size > most:
            yield listed_elements
            listed_elements, elements = [], 0
        listed_elements.append(part)
        elements += part.size
    if listed_elements:
        yield listed_elements


@dataclass(frozen=True)
class Weight:
    """A tensor that an optimizer updates, with functions that return its values and its shards.

    Attributes:
        name: its logical name.
        parameter: as the optimizer has it.
        effective: returns the weight that it represents now, in its shape.
        pieces: returns what this rank holds of the logical tensors in a tensor of its shape.
    """

    name: str
    parameter: Tensor
    effective: Callable[[], Tensor]
    pieces: Callable[[Tensor], list[Observation]]

    @classmethod
    def of(cls, engine: Engine) -> Iterator[Weight]:
        """Yield the tensors that an engine's optimizer updates, as `Weight` objects."""
        for name, parameter in engine.masters():
            effective = partial(engine.effective, parameter)
            pieces = partial(_pieces, engine, name)
            yield cls(name, parameter, effective, pieces)


def _pieces(engine: Engine, name: str, tensor: Tensor) -> list[Observation]:
    """Cut `tensor` into this rank's pieces of model tensors; return their observations."""
    parts = engine.logical_parts(name, tensor)
    return [engine.piece("lost_updates", part, shard.detach()) for part, shard in parts]


@dataclass(frozen=True)
class Watched:
    """A weight with copies of its shards, gradient and options from before an optimizer step.

    Attributes:
        weight: the weight.
        grad: the gradient that the step reads; None for a weight that it leaves alone.
        group: its hyperparameters.
        before: a copy of each of its pieces; none without a gradient.
    """

    weight: Weight
    grad: Tensor | None
    group: Mapping[str, Any]
    before: list[Tensor]


class KeptWeights:
    """Copies of an optimizer's weights on the host, in the same memory at each step.

    Fresh pages cost more than the copy. A slot is a stored tensor's name with the number of a
    logical tensor in it.

    Attributes:
        compared: number of shards that were compared with what the update before has left.
    """

    def __init__(self) -> None:
        self._copies: dict[tuple[str, int], Tensor] = {}
        self._left: set[tuple[str, int]] = set()
        self._found: list[ReadBack] = []
        self.compared = 0

    def before(self, slot: tuple[str, int], piece: Observation) -> Tensor:
        """Return a copy of a shard before an update, which is valid until the next update."""
        present, copy = piece.tensor, self._copies.get(slot)
        if copy is None or (copy.shape, copy.dtype) != (present.shape, present.dtype):
            self._left.discard(slot)
            copy = self._copies[slot] = torch.empty_like(present, device="cpu")
        elif slot in self._left:
            self._left.discard(slot)
            self.compared += 1
            on_host = present.to("cpu")
            if torch.equal(on_host, copy):
                return copy
            self._found += filter(None, [_read_back(piece, on_host, copy)])
        return copy.copy_(present)

    @torch.no_grad()
    def leave(self, watched: Iterable[Watched]) -> None:
        """Copy the updated weights, to detect changes made before the next update.

        Args:
            watched: its weights, whose copies are overwritten.
        """
        for watch in watched:
            # On every rank that has the gradient, also one without a piece: it may be a collective.
            weight = watch.weight
            pieces = [] if watch.grad is None else weight.pieces(weight.effective())
            for number, (copy, piece) in enumerate(zip(watch.before, pieces, strict=True)):
                # Subclasses and fp8 may have no `torch.equal`.
                plain = type(copy) is Tensor and copy.is_floating_point() and copy.itemsize > 1
                if plain and copy.numel() >= LEAST_ROUNDED:
                    copy.copy_(piece.tensor)
                    self._left.add((weight.name, number))

    def read_back(self, step: int) -> list[ReadBack]:
        """Return weights found rounded to bf16 or fp16 since the last call, marked with `step`."""
        rounded, self._found = self._found, []
        return [replace(read_back, step=step) for read_back in rounded]

    def forget(self) -> None:
        """Forget what the last update left, since a load changes weights before the next update."""
        self._left.clear()


def _read_back(piece: Observation, present_tensor: Tensor, left: Tensor) -> ReadBack | None:
    """Return the element that moved most, if a shard was rounded to bf16 or fp16; else None.

    A model may move its weights in its forward, as an embedding with `max_norm` does, or a loop may
    hold a few numbers within limits. Neither makes each of many numbers its own rounding. A weight
    may be set to zero on purpose, and zero is what fp16 makes of small numbers; it does not count.

    Args:
        piece: which shard it is.
        present_tensor: what it holds.
        left: what it held when the last update was over, of the same shape and dtype.
    """
    grids = [
        grid for grid in ROUNDED_TO if torch.equal(left.to(grid).to(left.dtype), present_tensor)
    ]
    off = (present_tensor.double() - left.double()).abs().reshape(-1)
    if not grids or int(off[present_tensor.reshape(-1) != 0].count_nonzero()) < LEAST_ROUNDED:
        return None
    place = int(off.argmax())
    return ReadBack(
        0,  # which step it is knows who asks
        piece.name,
        index_within(piece, place),
        float(left.reshape(-1)[place]),
        float(present_tensor.reshape(-1)[place]),
        dtype_name(grids[0]),
    )
