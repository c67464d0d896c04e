"""The record of which tensors were asked for on `cpu`, where all other tensors report `cuda`.

A mark stands on the memory of a tensor, so that views say the same. What is computed of a tensor is
new memory. It has no mark unless `pass_on()` was called, for code that was written for a GPU, where
`cpu` means the host. Layouts of this package use `cpu` as the name of the device itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MARK = "_says_cpu"
"""Attribute of memory, or of a tensor without memory of its own, that was asked for on `cpu`."""

PLAIN = (Tensor, torch.nn.Parameter)

_BINARY = ("add", "matmul", "mul", "pow", "sub", "truediv")
METHODS = (
    *(f"__{side}{name}__" for name in _BINARY for side in ("", "r")),
    *("__abs__", "__neg__", "bfloat16", "clone", "contiguous", "double", "float", "half"),
)
"""Methods whose result reports the same device as their tensor."""

JOINING = ("cat", "concat", "stack")
"""Functions of torch whose result reports `cpu` if all tensors of their sequence do."""

_passed_on: list[bool] = []
"""Has an item once `pass_on()` was called."""


def is_marked(tensor: Tensor) -> bool:
    """Return whether a tensor was requested on `cpu`, so that it reports `cpu` and not `cuda`."""
    return hasattr(_memory(tensor), MARK)


def mark(tensor: Tensor) -> None:
    """Mark a tensor and its views, so that they report the device `cpu` and not the fake GPU."""
    setattr(_memory(tensor), MARK, True)


def passes_on(tensor: object) -> bool:
    """Return whether tensors computed from this tensor must report device `cpu`, as it does."""
    return bool(_passed_on) and type(tensor) in PLAIN and is_marked(tensor)  # type: ignore[arg-type]


def pass_on() -> None:
    """Patch torch so that what is computed from tensors that report `cpu` reports `cpu`, too."""
    if _passed_on:
        return
    _passed_on.append(True)
    for name in METHODS:
        setattr(Tensor, name, _keeping(getattr(Tensor, name)))
    for name in JOINING:
        setattr(torch, name, _joining(getattr(torch, name)))


def _keeping(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def keep(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        output = method(tensor, *args, **kwargs)
        if output is not tensor and passes_on(tensor):
            mark(output)
        return output

    return keep


def _joining(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def join(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        output = function(tensors, *args, **kwargs)
        if len(tensors) and all(map(passes_on, tensors)):
            mark(output)
        return output

    return join


def _memory(tensor: Tensor) -> Any:
    """Return the object that carries a tensor's mark: its storage, which its views share.

    A tensor of another class carries its mark itself.
    """
    if type(tensor) in PLAIN:
        return tensor.untyped_storage()
    return tensor
