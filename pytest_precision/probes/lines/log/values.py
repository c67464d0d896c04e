"""Compute digests of tensors' contents, and cache them until an operation overwrites them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.around import has_own_memory, storage_key, weak_storage
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.probes.lines.log.cuts import Cuts
from pytest_precision.probes.lines.operations import GENERATOR, Value
from pytest_precision.trace.digests import content_digest, in_order

SAMPLES = 4
"""Places of a tensor that are looked at before a digest is believed: a kernel that torch does not
dispatch may have written to it."""


MOST_ROWS = 16
"""Matrices in one tensor, such as those of experts, up to which each is digested by itself."""


MOST_SINGLE_ROWS = 4096
"""Rows of a tensor up to which each is digested by itself, where that is asked for."""


class Values:
    """Returns digests of tensors' contents, and caches them until they are overwritten.

    Memory is followed by the identity of its storage, which is not given to another one as long as
    there is a weak reference to it.

    Args:
        pieces: see `LogRequest`.
        rows: see `LogRequest`.

    Attributes:
        cuts: where tensors lie in flat buffers.
    """

    def __init__(self, pieces: int = 1, *, rows: bool = False) -> None:
        self._pieces = pieces
        self._rows = rows
        self.cuts = Cuts(self._storage)
        self._storages: dict[int, tuple[int, Any]] = {}
        self._known: dict[int, dict[Any, tuple[Value, bytes]]] = {}

    def of(self, tensor: Tensor) -> Value:
        """Return a digest of a tensor's present bytes, with dtype, shape, storage, byte range."""
        storage = self._storage(tensor)
        laid = tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        place = (*laid, tensor.is_conj(), tensor.is_neg())
        sample = _sample(tensor)
        cached = self._known.setdefault(storage, {})
        entry = cached.get(place)
        if entry is None or entry[1] != sample:
            dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
            ordered = in_order(tensor.detach())
            ends = pairwise((*self._starts(tensor), ordered.numel()))
            pieces = tuple(content_digest(ordered, start, stop) for start, stop in ends)
            start = int(tensor.storage_offset()) * tensor.element_size()
            span = start, _reaches(tensor)
            whole = content_digest(ordered, 0, ordered.numel())
            entry = Value(whole, storage, dtype, shape, pieces, span), sample
            cached[place] = entry
        return entry[0]

    def forget(self) -> None:
        """Drop all cached digests, because unlogged operations may have changed the tensors."""
        self._known.clear()

    def overwritten(self, tensor: Tensor) -> None:
        """Drop the cached digests of all tensors that share this tensor's storage."""
        self._known.pop(self._storage(tensor), None)

    def _starts(self, tensor: Tensor) -> Sequence[int]:
        """Return the element offsets at which a tensor is split into parts to digest separately."""
        cuts = self.cuts.inside(tensor)
        if cuts:
            return [0, *cuts]
        length = len(tensor) if tensor.dim() else 1
        if self._rows and tensor.dim() > 1:
            width = tensor.shape[-1]
            is_short = 1 < tensor.numel() // width <= MOST_SINGLE_ROWS
            return range(0, tensor.numel(), width) if is_short else ()
        if tensor.dim() > 2 and 1 < length <= MOST_ROWS:
            rows = 1
        elif self._pieces > 1 and length > 1:
            rows = -(-length // self._pieces)
        else:
            return ()
        return range(0, tensor.numel(), rows * (tensor.numel() // length))

    def _storage(self, tensor: Tensor) -> int:
        key = storage_key(tensor)
        numbered = self._storages.get(key)
        if numbered is None:
            numbered = self._storages[key] = len(self._storages), weak_storage(tensor)
        return numbered[0]


def has_values(value: object) -> bool:
    """Return whether an operator's argument is a tensor whose bytes can be read."""
    return (
        isinstance(value, Tensor)
        and has_own_memory(type(value))
        and value.layout is torch.strided
        and not value.is_meta
        and not value.is_nested
        and _reaches(value) <= value.untyped_storage().nbytes()
        and value.numel() > 0
    )


def _reaches(tensor: Tensor) -> int:
    """Return the end of a tensor's last element, in bytes from the start of its storage."""
    return int(tensor.storage_offset() + _last(tensor) + 1) * tensor.element_size()


def _last(tensor: Tensor) -> int:
    """Return the distance in memory, in elements, from a tensor's first element to its last."""
    if tensor.is_contiguous():
        return tensor.numel() - 1
    return sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def generator_state(generator: torch.Generator | None, device: torch.device) -> Value:
    """Return a digest of the random generator's state that an operator is about to use."""
    if generator is not None:
        state = generator.get_state()
    elif device.type == "cpu":
        state = torch.get_rng_state()
    else:
        state = torch.get_device_module(device).get_rng_state(device)
    return Value(content_digest(state, 0, len(state)), GENERATOR, "generator", ())


def _sample(tensor: Tensor) -> bytes:
    """Return the bytes of a few elements of a CPU tensor, with the first and last one."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return b""
    size, start = tensor.element_size(), tensor.data_ptr()
    last = _last(tensor)
    steps = SAMPLES - 1 if tensor.is_contiguous() else 1
    return b"".join(
        ctypes.string_at(start + last * place // steps * size, size) for place in range(steps + 1)
    )
