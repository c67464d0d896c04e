"""Digest what a rank holds of a loop, where other ranks may hold the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.dispatch import is_on_cpu
from pytest_precision._torch.distributed import is_dtensor, local_chunk
from pytest_precision.engine import groups
from pytest_precision.engine.observation import Chunk, tensors_in
from pytest_precision.engine.readable import stored
from pytest_precision.ranks.state.accelerator import generator_states
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.watching.teams import OPTIMIZER_STATE, ReplicaDigest, ReplicaStart
from pytest_precision.trace.digests import digest
from pytest_precision.trace.lin8 import partial_digests
from pytest_precision.trace.lin8_sums import DigestedPart


class Digests:
    """Digests of plain tensors: on a device with one wait for all of them, of 16 bytes each."""

    def __init__(self) -> None:
        self._rows: list[ReplicaDigest] = []
        self._waiting: list[tuple[int, DigestedPart]] = []

    def add(self, kind: str, name: str, owner: str, tensor: Tensor) -> None:
        """Digest what a tensor holds on this rank."""
        if _is_plain(tensor):
            self._add_part(kind, name, owner, tensor.detach())
            return
        for part in stored(kind, tensor.detach()):
            plain = part.tensor.to_local() if is_dtensor(part.tensor) else part.tensor
            self._add_part(part.kind, name, owner, plain)

    def add_leaf(self, kind: str, name: str, leaf: object) -> None:
        """Digest a number, a text or a tensor that no parameter has, by its name."""
        owner = f"{kind} {name}"
        if isinstance(leaf, Tensor):
            self.add(kind, name, owner, leaf)
        else:
            text = xxhash.xxh3_128_hexdigest(repr(leaf).encode())
            self._rows.append(ReplicaDigest(kind, name, owner, text))

    def rows(self) -> list[ReplicaDigest]:
        """Return all digests."""
        parts = [part for _, part in self._waiting]
        for (place, _), text in zip(self._waiting, partial_digests(parts), strict=True):
            self._rows[place] = self._rows[place]._replace(digest=text)
        self._waiting.clear()
        return self._rows

    def _add_part(self, kind: str, name: str, owner: str, tensor: Tensor) -> None:
        if is_on_cpu(tensor):
            self._rows.append(ReplicaDigest(kind, name, owner, digest(tensor)))
            return
        shape = tuple(tensor.shape)
        whole = DigestedPart(tensor, shape, Chunk((0,) * len(shape), shape))
        self._waiting.append((len(self._rows), whole))
        self._rows.append(ReplicaDigest(kind, name, owner, ""))


class Replicas:
    """Reads and digests what a rank holds of a loop.

    Args:
        reader: knows its models and optimizers.
    """

    def __init__(self, reader: LoopReader) -> None:
        self._reader = reader
        self._owners: dict[int, tuple[Tensor, str, str]] = {}  # keeps each tensor, and so its id

    def starts(self, optimizers: Iterable[Optimizer]) -> list[ReplicaStart]:
        """Return what this rank holds before the first update of some optimizers."""
        starts = []
        for kind, name, owner, tensor in self._weights(optimizers):
            digests = Digests()
            digests.add(kind, name, owner, tensor)
            starts += [
                ReplicaStart(row, _mesh_of(tensor), _is_constant(tensor), is_weight=True)
                for row in digests.rows()[:1]
            ]
        digests = Digests()
        for optimizer in optimizers:
            self._add_options(digests, optimizer)
        self._add_further(digests)
        return starts + [
            ReplicaStart(row, may_differ=row.kind not in ("rng", "lr")) for row in digests.rows()
        ]

    def gradients(self, optimizer: Optimizer) -> list[ReplicaDigest]:
        """Return what this rank has of the gradients that an optimizer's step reads."""
        digests = Digests()
        for _, name, owner, tensor in self._updated(optimizer):
            if tensor.grad is not None:
                digests.add("final_grad", name, owner, tensor.grad)
        return digests.rows()

    def updated(self, optimizers: Iterable[Optimizer]) -> list[ReplicaDigest]:
        """Return what this rank holds after an update of some optimizers."""
        digests = Digests()
        optimizers = [*optimizers]
        for optimizer in optimizers:
            self._add_options(digests, optimizer)
            for _, name, owner, tensor in self._updated(optimizer):
                for path, leaf in tensors_in(optimizer.state.get(tensor)):
                    digests.add(path.lstrip("."), name, owner + OPTIMIZER_STATE, leaf)
        for weight in self._weights(optimizers):
            digests.add(*weight)
        self._add_further(digests)
        return digests.rows()

    def _updated(self, optimizer: Optimizer) -> Iterator[tuple[str, str, str, Tensor]]:
        """Yield kind, name, owner and tensor of all that an optimizer updates."""
        first = self._reader.prefix_of(optimizer)
        for place, tensor in groups.places(groups.group_members(optimizer)):
            name, owner = self._owner(tensor, f"{first}{place}")
            yield "param" if self._reader.names.of(tensor) else "master", name, owner, tensor

    def _weights(self, optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, str, str, Tensor]]:
        """Yield all that the optimizers update, and the other parameters of the models."""
        yielded = set()
        for name, tensor in self._reader.names.parameters():
            yielded.add(id(tensor))
            yield "param", *self._owner(tensor, name), tensor
        for optimizer in optimizers:
            for weight in self._updated(optimizer):
                if id(weight[-1]) not in yielded:
                    yielded.add(id(weight[-1]))
                    yield weight

    def _owner(self, tensor: Tensor, place: str) -> tuple[str, str]:
        """Return the name of a weight, and what says which ranks hold it alike."""
        if id(tensor) not in self._owners:
            name = owner = self._reader.names.of(tensor) or place
            if is_dtensor(tensor):
                owner += f" {local_chunk(tensor)} of {tuple(tensor.shape)}"
            elif (pieces := self._reader.names.pieces(tensor)) is not None:
                owner += f" {[*pieces]}"
            self._owners[id(tensor)] = tensor, name, owner
        return self._owners[id(tensor)][1:]

    def _add_options(self, digests: Digests, optimizer: Optimizer) -> None:
        first = self._reader.prefix_of(optimizer)
        for place, group in enumerate(optimizer.param_groups):
            for option, leaf in group.items():
                if option not in ("params", "param_names"):
                    kind = "lr" if option == "lr" else "hyper"
                    digests.add_leaf(kind, f"{first}param_groups.{place}.{option}", leaf)

    def _add_further(self, digests: Digests) -> None:
        for name, buffer in self._reader.names.buffers():
            digests.add("buffer", name, f"buffer {name}", buffer)
        for kind, state in generator_states().items():
            digests.add("rng", kind, f"rng {kind}", state)
        for name, leaf in self._reader.policies():
            digests.add_leaf("policy", name, leaf)


def _mesh_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.device_mesh.mesh.flatten().tolist()) if is_dtensor(tensor) else ()


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided


def _is_constant(tensor: Tensor) -> bool:
    plain = tensor.to_local() if is_dtensor(tensor) else tensor
    if not _is_plain(plain) or not plain.numel():
        return False
    with torch.no_grad():
        return bool((plain == plain.flatten()[0]).all())
