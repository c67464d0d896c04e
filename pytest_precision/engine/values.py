"""Find the numbers, texts and tensors in nested Python objects, and convert them to tensors."""

from __future__ import annotations

import io
import logging
import random
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from pytest_precision._torch.dispatch import memory_on_cpu
from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.engine.readable import in_graph, stored, unreadable
from pytest_precision.matrix.contract import dtype_name

DEEPEST = 4
"""Containers in containers that are looked into."""

MOST_LEAVES = 10_000
"""Leaves of one value that are looked at; a table of so many is no setting."""

EXACT_INTEGERS = 1 << 53
"""Integers up to which a float64 holds each of them."""

ADDRESS = 1 << 32
"""A whole number from which on a key may be the address of an object or of its memory."""

FOREIGN = ("torch", "builtins", "_thread", "weakref")
"""Packages whose objects hold no settings of a loop in attributes."""

_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), Enum, torch.dtype)
"""Classes of objects each of which `as_tensor` makes a tensor of."""

_OPAQUE = (
    *(FunctionType, MethodType, ModuleType, type, nn.Module, torch.optim.Optimizer),
    *(logging.Logger, logging.Handler),  # a logger has all others of the process
)


def leaves(
    value: Any, visited_ids: set[int] | None = None, packages: Collection[str] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for the numbers, texts and tensors in a nested value.

    The path of a value that is not nested is empty. Containers and objects of Python are looked
    into; functions, classes, modules, optimizers, loggers and torch's own objects are not.

    Args:
        value: anything.
        visited_ids: ids of objects that were looked into before, to which its own are added.
        packages: those whose objects are looked into; all but torch unless given.
    """
    yield from islice(
        _leaves(value, 0, set() if visited_ids is None else visited_ids, packages), MOST_LEAVES
    )


def _leaves(
    value: Any, depth: int, visited_ids: set[int], packages: Collection[str]
) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _OPAQUE) or id(value) in visited_ids:
        return
    if _is_leaf(value):
        yield "", value
        return
    entries = _entries(value, packages)
    if entries and depth < DEEPEST:
        visited_ids.add(id(value))
        for key, entry in entries.items():
            for path, leaf in _leaves(entry, depth + 1, visited_ids, packages):
                yield f".{key}{path}", leaf


def _is_leaf(value: Any) -> bool:
    """Return whether a value becomes one tensor, so that its entries are not visited."""
    if isinstance(value, Tensor):
        return not (in_graph(value) or unreadable(value))
    return isinstance(value, _PLAIN) or as_tensor(value) is not None


def _entries(value: Any, packages: Collection[str]) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return {_name(key, place): entry for place, (key, entry) in enumerate(value.items())}
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    if isinstance(value, (set, frozenset)):
        return dict(enumerate(sorted(map(repr, value))))
    package = package_of(type(value))
    if package in FOREIGN or (packages and package not in packages):
        return {}
    return {**getattr(value, "__dict__", {})}


def _name(key: Any, place: int) -> Any:
    """Return a mapping's key, or `#` and its position if the key may differ between processes."""
    return key if _is_name(key) else f"#{place}"


def _is_name(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_name, key))
    if isinstance(key, int):
        return abs(key) < ADDRESS
    return key is None or isinstance(key, (str, bytes, float, Enum, torch.dtype, torch.device))


def package_of(kind: type) -> str:
    """Return the name of the top-level package that defines a class."""
    return kind.__module__.partition(".")[0]


def as_tensor(value: Any) -> Tensor | None:
    """Return a number, text, tensor or random state as a tensor; None for any other value."""
    value = plain_number(value)
    if isinstance(value, Tensor):
        return _readable(value)
    if isinstance(value, (bool, float, complex)):
        wide = {float: torch.float64, complex: torch.complex128}
        return torch.tensor(value, dtype=wide.get(type(value)))
    if isinstance(value, int):
        return torch.tensor(value) if -(1 << 63) <= value < 1 << 63 else text_bytes(str(value))
    if isinstance(value, (str, bytes, bytearray)):
        return text_bytes(value)
    if value is None or isinstance(value, (Enum, torch.dtype, torch.device)):
        return text_bytes(str(value))
    return _state_of(value)


def _readable(value: Tensor) -> Tensor | None:
    """Return this rank's shard as a plain tensor; None without memory or in an autograd graph."""
    if in_graph(value) or unreadable(value):
        return None
    tensor = value.detach()
    local_tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return next(stored("", local_tensor)).tensor


def _state_of(value: Any) -> Tensor | None:
    """Return a random generator's state, or an in-memory file's bytes, as a tensor; else None."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return text_bytes(repr(value.getstate()))
    if isinstance(value, np.random.Generator):
        return text_bytes(_whole(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return text_bytes(_whole(value.get_state(legacy=False)))
    return text_bytes(value.getvalue()) if isinstance(value, io.BytesIO) else None


def _whole(state: object) -> str:
    with np.printoptions(threshold=sys.maxsize):
        return repr(state)


def text_bytes(value: str | bytes | bytearray) -> Tensor:
    """Return the bytes of a text as a uint8 tensor; one zero byte for an empty text."""
    content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)


def number(value: Any) -> Tensor | None:
    """Convert a number, text or tensor to a tensor; numbers become float64, so that 0 equals 0.0.

    None gives None: it stands for what an optimizer then chooses.
    """
    tensor = None if value is None else as_tensor(value)
    if tensor is None or tensor.dtype in (torch.bool, torch.uint8) or tensor.is_complex():
        return tensor
    tensor = tensor.reshape(()) if tensor.numel() == 1 else tensor
    small = (
        tensor.is_floating_point()
        or not tensor.numel()
        or int(tensor.abs().max()) <= EXACT_INTEGERS
    )
    return tensor.to(torch.float64) if small else tensor


def plain_number(value: Any) -> Any:
    """Return a numpy scalar as a Python number, a numpy array as a tensor, else the value."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(np.ascontiguousarray(value).copy())
    return value


def fingerprint(leaf: Any) -> object:
    """Return a hashable value that two objects share only if they have equal type and bits."""
    if isinstance(leaf, (bool, int, float, complex, str, bytes, type(None))):
        return type(leaf), repr(leaf)
    tensor = as_tensor(leaf)
    return None if tensor is None else _tensor_fingerprint(tensor)


def start_of(leaf: Any) -> str:
    """Return dtype, shape and digest of a value, as `described` gives them for a recorded tensor.

    It is empty for a value that cannot become a tensor.
    """
    tensor = as_tensor(leaf)
    if tensor is None:
        return ""
    dtype, shape, digest = _tensor_fingerprint(tensor)
    return described(dtype_name(dtype), shape, digest.hex())


def described(dtype: str, shape: Sequence[int], digest: str) -> str:
    """Return a text that two tensors share only if they have equal dtype, shape and bytes.

    Args:
        dtype: its name, without `torch.`.
        shape: of the tensor.
        digest: xxh3-128 of its bytes in row-major order, hexadecimal.
    """
    return f"{dtype}{[*shape]} {digest}"


def _tensor_fingerprint(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    flat_tensor = memory_on_cpu(tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (
        tensor.dtype,
        tensor.shape,
        xxhash.xxh3_128_digest(flat_tensor.view(torch.uint8).numpy().tobytes()),
    )
