"""Split two tensors into corresponding parts that are small enough to stay in a CPU cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

SPAN = 2**21
"""Bytes of each side that are compared at a time before anything is computed."""

PartOfTensor = tuple[int | slice, ...]


def spans(
    candidate: Tensor, reference: Tensor, dtype: torch.dtype
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield two tensors span by span: flat position, candidate's and reference's elements."""
    if candidate.is_contiguous() and reference.is_contiguous():
        candidate, reference = candidate.view(-1), reference.view(-1)
    start = 0
    for window in _windows(tuple(reference.shape), SPAN // dtype.itemsize):
        c = _flat(candidate[window], dtype)
        yield start, c, _flat(reference[window], dtype)
        start += c.numel()


def _windows(shape: tuple[int, ...], numel: int) -> Iterator[PartOfTensor]:
    """Yield indices of consecutive parts of a tensor of `shape`, each of up to `numel` elements."""
    outer = len(shape)
    while outer and math.prod(shape[outer - 1 :]) <= numel:
        outer -= 1
    if not outer:
        yield ()
        return
    rows = numel // math.prod(shape[outer:])
    for prefix in itertools.product(*map(range, shape[: outer - 1])):
        for begin in range(0, shape[outer - 1], rows):
            yield (*prefix, slice(begin, begin + rows))


def _flat(part: Tensor, dtype: torch.dtype) -> Tensor:
    if is_plain(part, dtype):
        return part.view(-1)
    return torch.empty(part.shape, dtype=dtype, device="cpu").copy_(part).view(-1)


def is_plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a tensor can be viewed as a flat CPU tensor of `dtype` without a copy."""
    return (
        tensor.dtype is dtype
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )
