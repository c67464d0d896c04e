"""The part of a train step that each rank stores for recomputing it, and joining of shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import xxhash
from torch import Tensor

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Chunk, Observation
from pytest_precision.trace.digests import bytes_of, in_order


@dataclass
class ShownStep:
    """The inputs and results of a train step on one rank: weights, losses, gradients.

    Attributes:
        step: number of the train step.
        dealt: position and size in the data-parallel dimension.
        scale: the loss scale of its gradients.
        weights: as the forward read them.
        buffers: of the model before it.
        losses: of its microbatches.
        grad: its own sums.
        reduced: the sums over all ranks.
        updated: what the optimizer updates, before it does and after; only where that is asked.
    """

    step: int
    dealt: tuple[int, int]
    scale: float = 1.0
    weights: list[Observation] = field(default_factory=list)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    losses: list[Observation] = field(default_factory=list)
    grad: list[Observation] = field(default_factory=list)
    reduced: list[Observation] = field(default_factory=list)
    updated: tuple[list[Observation], ...] = ()


def step_digest(shown_step: ShownStep) -> str:
    """Return the xxh3-128 digest, in hex, of a step's inputs and results on one rank."""
    pieces = [
        ((attribute, piece.kind, piece.name, piece.shape, piece.place), piece.tensor)
        for attribute in ("weights", "losses", "grad", "reduced")
        for piece in getattr(shown_step, attribute)
    ]
    return _digest(
        (shown_step.step, shown_step.dealt, shown_step.scale),
        [*pieces, *shown_step.buffers.items()],
    )


def start_digest(
    step: int, size: int, scale: float, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> str:
    """Return the xxh3-128 digest, in hex, of all inputs of a step.

    Args:
        step: number of the train step.
        size: of the data-parallel dimension.
        scale: the loss scale.
        weights: logical tensors, and the bytes and scales of those that are stored as such.
        buffers: of the model.
    """
    named = [*sorted(weights.items()), *sorted(buffers.items())]
    return _digest((step, size, scale, len(weights)), named)


def _digest(head: tuple[Any, ...], named: Iterable[tuple[Any, Tensor]]) -> str:
    digest = xxhash.xxh3_128(repr(head).encode())
    for name, tensor in named:
        ordered_tensor = in_order(tensor)
        digest.update(repr((name, ordered_tensor.dtype, ordered_tensor.shape)).encode())
        digest.update(bytes_of(ordered_tensor))
    return digest.hexdigest()


def resident_pieces(engine: Engine) -> list[Observation]:
    """Return copies of this rank's shards of the model's parameters."""
    return cpu_copies(
        piece
        for name, parameter in engine.model.named_parameters()
        for piece in engine.show("param", name, parameter, Capture())
    )


def cpu_copies(pieces: Iterable[Observation]) -> list[Observation]:
    """Return observations with tensors copied to the CPU; leave out those on the meta device."""
    return [
        replace(piece, tensor=piece.tensor.detach().to("cpu", copy=True))
        for piece in pieces
        if piece.tensor.device.type != "meta"
    ]


def part(whole: Tensor, piece: Observation) -> Tensor:
    """Return the part of an unsharded tensor that a shard covers, as a view where possible."""
    if isinstance(piece.place, Chunk):
        for dim, (start, size) in enumerate(
            zip(piece.place.offsets, piece.place.sizes, strict=True)
        ):
            whole = whole.narrow(dim, start, size)
        return whole
    return whole.view(-1)[piece.place.start : piece.place.stop].view(piece.tensor.shape)


def whole_tensors(pieces: Sequence[Observation]) -> dict[str, Tensor]:
    """Return the tensors, in fp64, that the shards of all ranks cover completely, by name."""
    wholes: dict[str, Tensor] = {}
    covered_tensors: dict[str, Tensor] = {}
    for piece in pieces:
        if piece.name not in wholes:
            wholes[piece.name] = torch.zeros(piece.shape, dtype=torch.float64)
            covered_tensors[piece.name] = torch.zeros(piece.shape, dtype=torch.bool)
        part(wholes[piece.name], piece).copy_(piece.tensor)
        part(covered_tensors[piece.name], piece).fill_(True)
    return {
        name: whole_tensor
        for name, whole_tensor in wholes.items()
        if bool(covered_tensors[name].all())
    }
