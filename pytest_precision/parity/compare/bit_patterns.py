"""Split two tensors into spans that fit a CPU cache, and view their elements as bit patterns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bits = npt.NDArray[Any]


NumpyValues = npt.NDArray[Any]

Working = npt.NDArray[Any]
"""Values of shape (n,) as float32 or float64."""


SIGNED_FLOATS = {
    torch.float64: 52,
    torch.float32: 23,
    torch.float16: 10,
    torch.bfloat16: 7,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 2,
    torch.float8_e4m3fnuz: 3,
    torch.float8_e5m2fnuz: 2,
}
"""Mantissa bits of the floating dtypes that have a sign, an exponent and a mantissa, in order."""


IEEE = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)
"""Floating dtypes whose largest exponent is for infinities and NaN only."""


FLOATS = (*SIGNED_FLOATS, torch.float8_e8m0fnu)
"""Floating dtypes with one value per element, the only ones with a `torch.finfo`;
`float8_e8m0fnu` is all magnitude."""


INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


COMPLEX = (torch.complex64, torch.complex128)


LANES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Bytes per element to the integer dtype that holds one; two of them hold 16 bytes."""


def bits(tensor: torch.Tensor) -> Bits:
    """Return the bit patterns of a contiguous tensor: (n,), or (n, 2) for elements of 16 bytes."""
    lanes: Bits = tensor.view(-1).view(LANES[tensor.itemsize]).numpy()
    return lanes.reshape(-1, 2) if tensor.itemsize == 16 else lanes


def differ(c: Bits, r: Bits) -> npt.NDArray[np.bool_]:
    """Return a bool array of shape (n,) that marks the elements whose bit patterns differ."""
    differ: npt.NDArray[np.bool_] = np.not_equal(c, r)
    return differ if differ.ndim == 1 else np.logical_or(differ[:, 0], differ[:, 1])


def values_of_bits(bits: Bits, dtype: torch.dtype) -> NumpyValues:
    """Return the values of bit patterns: float64, complex128, or the integers themselves."""
    if dtype is torch.bool:
        return np.not_equal(bits, 0)
    tensor = torch.from_numpy(bits).view(dtype).view(-1)
    if dtype in FLOATS:
        return tensor.to(torch.float64).numpy()
    if dtype in COMPLEX:
        return tensor.to(torch.complex128).numpy()
    return tensor.numpy()


def widened(bits: Bits, dtype: torch.dtype) -> Working:
    """Convert bit patterns to float32 or float64 values, so that numpy can compute with them."""
    if dtype in (torch.float32, torch.complex64):
        return bits.view(np.float32)
    if dtype in (torch.float64, torch.complex128):
        return bits.view(np.float64).reshape(-1)
    wide = torch.float32 if dtype.is_floating_point else torch.float64
    return torch.from_numpy(bits).view(dtype).to(wide).numpy()


def step_at(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the step between representable values of `dtype` at each of `values`."""
    limits = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=limits.tiny))
    return torch.ldexp(torch.full_like(values, limits.eps), exponent - 1)


def has_all(dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    """Return whether `dtype` represents every value of a tensor exactly."""
    return torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


def ulps(c: Bits, r: Bits, dtype: torch.dtype) -> npt.NDArray[np.uint64]:
    """Return elementwise distances in ulp between arrays of bit patterns; -0 and +0 are equal."""
    width = 8 * c.itemsize
    c, r = (bits.view(f"u{bits.itemsize}").astype(np.uint64) for bits in (c, r))
    if dtype not in SIGNED_FLOATS:
        return np.maximum(c, r) - np.minimum(c, r)
    magnitude = np.uint64(2 ** (width - 1) - 1)
    c_size, r_size = c & magnitude, r & magnitude
    apart = np.maximum(c_size, r_size) - np.minimum(c_size, r_size)
    across: npt.NDArray[np.uint64] = np.where((c ^ r) > magnitude, c_size + r_size, apart)
    return across


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
        c = _flat_tensor(candidate[window], dtype)
        yield start, c, _flat_tensor(reference[window], dtype)
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


def _flat_tensor(part: Tensor, dtype: torch.dtype) -> Tensor:
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
