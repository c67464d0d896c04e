"""A log, beside each rank's trace, of a digest of each microbatch that the workload made.

Runs on different data differ whatever their layouts do. So what each rank was given is recorded
where the rank asks for it, and compared before anything else.

`DataWatch` is not among the recorders, since it calls the user's workload: a log of operations
gives no line to what runs below a recorder (`probes/lines/log/frames.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.digests import bytes_of, in_order
from pytest_precision.trace.rank_log import RankPart, SealedLog
from pytest_precision.trace.sound import (
    LARGEST_COUNT,
    sound_integer,
    sound_list,
    sound_object,
    texts,
    unsound,
)
from pytest_precision.workloads.base import Workload

Given = Mapping[int, Sequence[str]]
"""Train step, 0 for the evaluation, to the digests of its microbatches in their order."""


@dataclass(frozen=True)
class DataLog(SealedLog):
    """The digests of the microbatches that a workload gave to each rank of a run.

    Attributes:
        digests: per rank, what it was given when it first asked.
        unsteady: per rank, the steps whose data were different when it asked again.
        tokens: of all ranks, step to the numbers of tokens that its microbatches have.
    """

    stem = "data"
    in_bare = True

    digests: tuple[Given, ...]
    unsteady: tuple[tuple[int, ...], ...]
    tokens: Mapping[int, Set[int]] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> DataLog:
        """Make one log of the digests of all ranks, from every part of a run between restarts."""
        of_ranks: dict[int, dict[int, Sequence[str]]] = {}
        unsteady: dict[int, list[int]] = {}
        tokens: dict[int, set[int]] = {}
        for _, rank, log in parts:
            before = of_ranks.setdefault(rank, {})
            steps = {int(step): digests for step, digests in log["given"].items()}
            other = [step for step in steps.keys() & before.keys() if steps[step] != before[step]]
            unsteady.setdefault(rank, []).extend([*log["unsteady"], *sorted(other)])
            of_ranks[rank] = steps | before
            for step, counts in log["tokens"].items():
                tokens.setdefault(int(step), set()).update(counts)
        return cls(tuple(of_ranks.values()), tuple(map(tuple, unsteady.values())), tokens)

    @classmethod
    def nothing(cls) -> dict[str, Any]:
        """Return the content of the log of a rank whose run has no workload."""
        return {"given": {}, "unsteady": (), "tokens": {}}

    @classmethod
    def expect_sound(cls, content: Any) -> None:
        """Raise unless a rank's parsed log of microbatch digests is well formed.

        Raises:
            ValueError: it names what cannot be.
        """
        sound_object("a log of data", content, ("given", "unsteady", "tokens"))
        for digests in _by_step(content["given"]):
            texts("digests of data", digests)
        for counts in _by_step(content["tokens"]):
            for count in sound_list("numbers of tokens", counts):
                sound_integer("a number of tokens", count)
        for step in sound_list("unsteady", content["unsteady"]):
            sound_integer("a step", step)


def _by_step(counted: Any) -> Iterable[Any]:
    for step in sound_object("what steps have", counted):
        if not (step.isascii() and step.isdecimal() and len(step) < len(str(LARGEST_COUNT))):
            raise unsound("the number of a step", step)
    return list(counted.values())


class DataWatch:
    """Wraps a workload to store a digest of each microbatch that it makes on this rank.

    Args:
        workload: the workload to watch from now on.
    """

    def __init__(self, workload: Workload) -> None:
        self._digests: dict[int, list[str]] = {}
        self._unsteady: dict[int, None] = {}
        self._tokens: dict[int, set[int]] = {}
        self._asked = 0
        ask = workload.microbatches
        count = workload.tokens

        def microbatches(cell: Cell, step: int) -> list[Any]:
            # A list, so that what is digested here is what is trained on.
            microbatches = [*ask(cell, step)]
            self._asked = step
            self._note(step, [data_digest(microbatch) for microbatch in microbatches])
            return microbatches

        def tokens(microbatch: Any) -> int:
            counted = count(microbatch)
            self._tokens.setdefault(self._asked, set()).add(int(counted))
            return counted

        # Around a `__setattr__` of the workload's own: it may be a frozen dataclass.
        object.__setattr__(workload, "microbatches", microbatches)
        object.__setattr__(workload, "tokens", tokens)

    def _note(self, step: int, digests: list[str]) -> None:
        if self._digests.setdefault(step, digests) != digests:
            self._unsteady[step] = None

    def write(self, folder: Path, rank: int) -> None:
        """Write this rank's digests of microbatches into a folder beside its trace."""
        write_data(folder, rank, self._digests, [*self._unsteady], self._tokens)


def write_data(
    folder: Path,
    rank: int,
    digests: Given | None = None,
    unsteady: Sequence[int] = (),
    tokens: Mapping[int, Set[int]] | None = None,
) -> None:
    """Write a rank's digests of microbatches as JSON; an empty log if none are given."""
    counts = {step: sorted(numbers) for step, numbers in (tokens or {}).items()}
    content = {"given": digests or {}, "unsteady": unsteady, "tokens": counts}
    DataLog.store(folder, rank, content)


def data_digest(microbatch: Any) -> str:
    """Return the xxh3-128 digest, in hex, of all tensors, numbers and texts in a microbatch."""
    state = xxhash.xxh3_128()
    for part in _parts(microbatch, frozenset()):
        state.update(part)
    return state.hexdigest()


def _parts(value: Any, within: frozenset[int]) -> Iterator[Any]:
    """Yield the bytes of a nested value: of its tensors, arrays, numbers, texts and structure.

    Args:
        value: containers, dataclasses and objects with attributes are opened; of anything else
            only the type counts.
        within: ids of what contains `value`, which is not opened again.
    """
    if isinstance(value, Tensor):
        yield from _tensor(value, within)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        yield f"{type(value).__name__} {value!r};".encode()
    elif id(value) not in within:
        inner = contents_of(value)
        yield f"{type(value).__name__} of {len(inner)}:".encode()
        for key, part in inner:
            yield from _parts(key, within)
            yield from _parts(part, within | {id(value)})


def _tensor(tensor: Tensor, within: frozenset[int]) -> Iterator[Any]:
    yield f"{tensor.dtype}{tuple(tensor.size()) if not tensor.is_nested else ''}".encode()
    if tensor.is_nested:
        yield from _parts(tensor.unbind(), within)
    elif tensor.layout is not torch.strided:
        yield from _parts(tensor.to_dense(), within)
    elif not hasattr(tensor, "__tensor_flatten__") and not tensor.is_meta:  # else without memory
        ordered_tensor = in_order(tensor.detach())
        yield bytes_of(ordered_tensor)


def contents_of(value: Any) -> list[tuple[object, Any]]:
    """Return the (key, value) pairs of a container, or of an object's attributes."""
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, (list, tuple)):
        return [*enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return [*getattr(value, "__dict__", {}).items()]
