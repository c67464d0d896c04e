"""Compute `lin8-128`, the digest of a tensor that is the sum of its shards' digests.

It is a sum over the bytes of a tensor in row-major order, modulo 2^64 and twice: each byte, as a
signed number, times a key that depends on its place alone (`lin8_definition`). So parts may be
digested wherever they lie, on any device and in any order, and `added_digest` makes the digest of
the whole of theirs.

Two tensors of one size that differ have equal digests with a probability of about 2^-110. Compare
all 128 bits: of a sum, a part says less than the same part of a hash (where high bits of bytes
differ, low bits of sums agree), so that whoever needs fewer bits hashes the whole digest first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from pytest_precision._torch.dispatch import is_on_cpu, memory_on_cpu
from pytest_precision.engine.observation import Chunk, Place
from pytest_precision.trace.lin8_definition import MODULUS, SIZES_FROM, splitmix
from pytest_precision.trace.lin8_keys import HOST_DEVICE
from pytest_precision.trace.lin8_sums import ByteSums, DeviceSums, DigestedPart, HostSums

LIN8 = "lin8-128"
"""Name of this digest in the header of a recording."""

TEXT_LENGTH = 32
"""Hexadecimal digits of a digest."""


def additive_digest(tensor: Tensor) -> str:
    """Return the digest of a whole tensor: 32 hexadecimal digits.

    It is one of dtype and shape no more than of the device: tensors of the same bytes in row-major
    order share it.

    Args:
        tensor: plain, of any dtype, strides and device; it is read there, and 16 bytes come back.
    """
    shape = tuple(tensor.shape)
    return partial_digest(tensor, shape, Chunk((0,) * len(shape), shape))


def partial_digest(tensor: Tensor, shape: Sequence[int], place: Place) -> str:
    """Return the digest of a part of a logical tensor, for `added_digest`.

    Args:
        tensor: the part, as `additive_digest` takes it; it may be empty.
        shape: of the logical tensor.
        place: the `Chunk` or the `Span` of it that the part holds.
    """
    return partial_digests([DigestedPart(tensor, tuple(shape), place)])[0]


def added_digest(parts: Iterable[str]) -> str:
    """Return the digest of all that some parts hold, from their digests.

    It is that of the whole tensor if each of its elements is in exactly one part. Sums do not
    tell: with a part left out and one of its size counted twice, they are those of other bytes.
    """
    first = second = 0
    for part in parts:
        first += int(part[:16], 16)
        second += int(part[16:], 16)
    return _text((first, second), 0)


def digest_of_zeros(nbytes: int) -> str:
    """Return the digest of a part of so many bytes that are all zero, wherever they lie."""
    return _text((0, 0), nbytes)


def partial_digests(parts: Sequence[DigestedPart]) -> list[str]:
    """Return the digest of each part, computed where the parts lie, with one wait for a device."""
    texts = [""] * len(parts)
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        on_host = is_on_cpu(part.tensor)
        by_device[HOST_DEVICE if on_host else part.tensor.device].append(number)
    for device, numbers in by_device.items():
        with torch.no_grad():
            sums = sums_for(device, len(numbers))
            for row, number in enumerate(numbers):
                sums.take(row, flat_bytes(parts[number].tensor), parts[number])
            totals = sums.finished()
        tensors = (parts[number].tensor for number in numbers)
        sizes = np.array([tensor.numel() * tensor.element_size() for tensor in tensors])
        with_sizes = totals.view(np.uint64) + sizes.astype(np.uint64)[:, None] * _SIZE_KEYS
        text = with_sizes.astype(">u8").tobytes().hex()
        for row, number in enumerate(numbers):
            texts[number] = text[TEXT_LENGTH * row : TEXT_LENGTH * (row + 1)]
    return texts


def sums_for(device: torch.device, parts: int) -> ByteSums:
    """Return an object that sums the bytes of this number of parts on a device."""
    if device == HOST_DEVICE:
        return HostSums(parts)
    if device.type == "cuda" and torch.version.cuda and find_spec("triton"):
        # Only here, since it imports Triton.
        from pytest_precision.trace.lin8_triton import TritonSums, computes_the_definition

        if computes_the_definition(device):
            return TritonSums(parts, device)
    return DeviceSums(parts, device)


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor in row-major order, flat, as int8, on the tensor's device."""
    plain = memory_on_cpu(tensor.detach()) if is_on_cpu(tensor) else tensor.detach()
    plain = plain.resolve_conj().resolve_neg()
    if plain.element_size() == 1:  # before it is copied: packed dtypes have few operators
        plain = plain.view(torch.int8)
    plain = plain.contiguous()
    # Not by view(-1), which keeps a stride of 2 that a tensor of one element may have.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.int8)


_SIZE_KEYS = np.array([splitmix(SIZES_FROM) | 1, splitmix(SIZES_FROM + 1) | 1], np.uint64)


def _text(sums: Sequence[int], nbytes: int) -> str:
    """Return the digest of two sums and of the number of bytes."""
    size_keys = _SIZE_KEYS.tolist()
    first, second = (
        (total + nbytes * key) % MODULUS for total, key in zip(sums, size_keys, strict=True)
    )
    return f"{first:016x}{second:016x}"
