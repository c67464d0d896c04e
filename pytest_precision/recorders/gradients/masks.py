"""Masks: find the tensors of a microbatch that mask some of its positions."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from pytest_precision.trace.data_log import contents_of


def positions_of(microbatch: Any) -> int:
    """Return the number of positions in a microbatch: the size of its largest target or mask."""
    return max(
        (one.numel() for one in _tensors(microbatch) if not one.is_floating_point() or _masks(one)),
        default=0,
    )


def is_masked(microbatch: Any) -> bool:
    """Return whether a microbatch has a tensor of zeros and ones that masks some positions."""
    return any(_masks(one) for one in _tensors(microbatch))


def unmasked(microbatch: Any) -> Any:
    """Return a copy of a microbatch whose masks are all ones."""
    copy = deepcopy(microbatch)
    for one in _tensors(copy):
        if _masks(one):
            one.fill_(1)
    return copy


def _masks(tensor: Tensor) -> bool:
    """Return whether a tensor is a mask: all its elements are 0 or 1, and some are 0."""
    if tensor.dtype is torch.bool:
        return not bool(tensor.all())
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any())


def _tensors(value: Any, within: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in within:
        for _, part in contents_of(value):
            yield from _tensors(part, within | {id(value)})
