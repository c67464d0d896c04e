"""Leaves of everything that a training loop can reach: find them, change one, read or put it back.

Written apart from what the package looks at, so that what it overlooks is found here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_precision.modules import QuantizedParameter

Path = tuple[tuple[str, Any], ...]
"""Steps from the roots to a leaf: an attribute, a key, or the position of a key without a name."""

OPAQUE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)

OBSERVER = frozenset({"capture", "cell", "_since"})
"""Attributes of an engine that belong to whoever records it."""

GENERATORS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand(()),
    "numpy": np.random.rand,
    "random": random.random,
}
"""What each generator that all share is asked for, which moves its state."""

STATES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "numpy": (np.random.get_state, np.random.set_state),
    "random": (random.getstate, random.setstate),
}
"""Functions that read and set the state of each."""


def leaves(roots: Mapping[str, Any]) -> list[Path]:
    """List the path of each leaf once."""
    generators = [(("generator", name),) for name in GENERATORS]
    return [*generators, *_walk(dict(roots), (), set())]


def _walk(value: Any, path: Path, visited_ids: set[int]) -> Iterator[Path]:
    if isinstance(value, (bool, int, float, complex, str)):
        yield path
        return
    if isinstance(value, OPAQUE) or id(value) in visited_ids or value is None:
        return
    visited_ids.add(id(value))
    if isinstance(value, (Tensor, np.generic, torch.Generator)):
        if isinstance(value, QuantizedParameter):
            yield from _walk(value.stored, (*path, ("attribute", "stored")), visited_ids)
            return
        usable = not isinstance(value, Tensor) or (value.numel() and value.grad_fn is None)
        yield from [path] if usable else []
        if isinstance(value, torch.nn.Parameter):
            yield (*path, ("attribute", "requires_grad"))
        if isinstance(value, Tensor) and value.is_leaf and value.grad is not None:
            yield (*path, ("attribute", "grad"))
        return
    for step, entry in _entries(value):
        yield from _walk(entry, (*path, step), visited_ids)


def _entries(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    if isinstance(value, Mapping):
        for position, (key, entry) in enumerate(value.items()):
            named = isinstance(key, str)  # numbers of hooks are others in each run
            yield (("key", key) if named else ("position", position)), entry
    elif isinstance(value, (list, tuple)):
        yield from ((("key", place), entry) for place, entry in enumerate(value))
    elif hasattr(value, "__dict__") and _is_own(value):
        for name, entry in vars(value).items():
            if name not in OBSERVER:
                yield ("attribute", name), entry


def _is_own(value: Any) -> bool:
    """Return whether an object belongs to the loop, rather than to torch's own machinery."""
    bases = (
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.optim.lr_scheduler.LRScheduler,
        torch.amp.GradScaler,
    )
    outside = type(value).__module__.partition(".")[0]
    return isinstance(value, bases) or outside not in ("torch", "weakref", "threading", "builtins")


def change(roots: Mapping[str, Any], path: Path) -> None:
    """Change one leaf: one element of a tensor, a number, a switch, a text, a generator.

    Raises:
        LookupError: there is no such leaf, which some other run had.
    """
    if path[0][0] == "generator":
        GENERATORS[path[0][1]]()
        return
    chain = _chain(roots, path)
    leaf = _get(chain[-1], path[-1])
    if isinstance(leaf, torch.Generator):
        torch.rand((), generator=leaf)
    elif isinstance(leaf, Tensor):
        with torch.no_grad():
            _change_element(leaf)
    else:
        _set(chain, path, _other(leaf))


def read(roots: Mapping[str, Any], path: Path) -> Any:
    """Return a copy of what a leaf is at present.

    Raises:
        LookupError, AttributeError: there is no such leaf.
    """
    if path[0][0] == "generator":
        return STATES[path[0][1]][0]()
    leaf = _get(_chain(roots, path)[-1], path[-1])
    if leaf is None:
        raise LookupError(words(path))
    if isinstance(leaf, torch.Generator):
        return leaf.get_state()
    return _local(leaf).detach().clone() if isinstance(leaf, Tensor) else leaf


def put(roots: Mapping[str, Any], path: Path, value: Any) -> None:
    """Put back what `read` has returned.

    Raises:
        LookupError, AttributeError: there is no such leaf.
    """
    if path[0][0] == "generator":
        STATES[path[0][1]][1](value)
        return
    chain = _chain(roots, path)
    leaf = _get(chain[-1], path[-1])
    alike = isinstance(leaf, Tensor) and isinstance(value, Tensor)
    if isinstance(leaf, torch.Generator):
        leaf.set_state(value)
    elif alike and _local(leaf).shape == value.shape:
        with torch.no_grad():
            _local(leaf).copy_(value)
    else:
        _set(chain, path, value.clone() if isinstance(value, Tensor) else value)


def can_be_removed(roots: Mapping[str, Any], path: Path) -> bool:
    """Return whether a leaf is an attribute, or has a key of its own in a dict."""
    if path[0][0] == "generator":
        return False
    how, holder = path[-1][0], _chain(roots, path)[-1]
    return how == "attribute" or (how == "key" and isinstance(holder, MutableMapping))


def remove(roots: Mapping[str, Any], path: Path) -> None:
    """Take away a leaf that `can_be_removed`.

    Raises:
        LookupError, AttributeError: there is no such leaf.
    """
    (how, name), holder = path[-1], _chain(roots, path)[-1]
    if how == "key":
        del holder[name]
    elif isinstance(holder, Tensor):
        setattr(holder, name, None)  # a gradient
    else:
        del vars(holder)[name]


def _chain(roots: Mapping[str, Any], path: Path) -> list[Any]:
    """Return the objects on the way to a leaf, of which the last one holds it."""
    chain: list[Any] = [dict(roots)]
    for step in path[:-1]:
        chain.append(_get(chain[-1], step))
    return chain


def _local(tensor: Tensor) -> Tensor:
    local_tensor: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local_tensor


def _other(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int):
        return value + 1
    return type(value)(value * 1.5 if value else 0.5)


def _change_element(tensor: Tensor) -> None:
    local_tensor = _local(tensor)
    if local_tensor.is_quantized:
        local_tensor.copy_(
            torch.quantize_per_tensor(local_tensor.dequantize() + 1, 0.1, 0, local_tensor.dtype)
        )
        return
    if hasattr(local_tensor, "__tensor_flatten__"):
        local_tensor = getattr(local_tensor, local_tensor.__tensor_flatten__()[0][0])
    flat = local_tensor.detach().view(-1) if local_tensor.is_contiguous() else local_tensor.detach()
    index = (0,) * flat.dim()
    if flat.dtype is torch.bool:
        flat[index] = ~flat[index]
    elif flat.is_floating_point() or flat.is_complex():
        if flat.element_size() == 1:
            raw = flat.view(torch.uint8)
            raw[index] = raw[index] ^ 1
        else:
            flat[index] = flat[index] * 1.5 if bool(flat[index] != 0) else 0.5
    else:
        flat[index] = flat[index] ^ 1 if flat.dtype is torch.uint8 else flat[index] + 1


def _get(value: Any, step: tuple[str, Any]) -> Any:
    how, name = step
    if how == "attribute":
        return getattr(value, name) if isinstance(value, Tensor) else vars(value)[name]
    return value[name] if how == "key" else [*value.values()][name]


def _set(chain: list[Any], path: Path, new: Any) -> None:
    """Put a value where the path ends; a tuple on the way is made anew."""
    (how, name), holder = path[-1], chain[-1]
    if isinstance(holder, tuple):
        parts = [*holder]
        parts[name] = new
        again = type(holder)(*parts) if hasattr(holder, "_fields") else tuple(parts)
        _set(chain[:-1], path[:-1], again)
    elif how == "attribute":
        if isinstance(holder, Tensor):
            setattr(holder, name, new)
        else:
            vars(holder)[name] = new
    elif how == "position":
        holder[[*holder][name]] = new
    else:
        holder[name] = new


def words(path: Path) -> str:
    """Write a path as people read it."""
    return ".".join(str(name) for _, name in path)
