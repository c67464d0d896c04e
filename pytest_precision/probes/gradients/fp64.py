"""Run a model's operations in fp64, even those that cast to fewer bits.

What it casts to fewer bits in between is fp64, too: two releases of a model that only round
otherwise have the same exact gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.around import around_operations, draws_random_numbers
from pytest_precision._torch.dispatch import tree_leaves, tree_map, writes


@contextmanager
def computing_in_fp64() -> Iterator[None]:
    """Make each operation inside the context compute in fp64, even where the model casts lower."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with around_operations(_in_fp64):
            yield
    finally:
        torch.set_default_dtype(usual)


def _in_fp64(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if draws_random_numbers(func):
        return func(*args, **kwargs)
    dtype = kwargs.get("dtype")
    if dtype is not None and dtype.is_floating_point:
        kwargs = {**kwargs, "dtype": torch.float64}
    floats = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if _is_float(leaf)}
    # A view has one tensor, and what is written to stays what it is.
    if len(floats) > 1 and torch.float64 in floats and not writes(func):
        args, kwargs = tree_map(_widened, (args, kwargs))
    return func(*args, **kwargs)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _widened(leaf: Any) -> Any:
    return leaf.double() if _is_float(leaf) else leaf
