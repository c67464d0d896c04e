"""Make the keys of `lin8-128` as tensors, once for each device."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from pytest_precision.trace.lin8_definition import (
    BLOCK_BYTES,
    BLOCKS_FROM,
    KEYS_FROM,
    KEYS_OF_BYTE,
    LANES_FROM,
    MODULUS,
)

HOST_DEVICE = torch.device("cpu")


def signed_64(number: int) -> int:
    """Return the signed 64-bit integer of the same bits."""
    return number - MODULUS if number >> 63 else number


def splitmixes(counters: Tensor) -> Tensor:
    """Return `splitmix` of each counter, as int64 of the same bits."""
    mixed = (counters + 1) * signed_64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * signed_64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * signed_64(0x94D049BB133111EB)
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    return (numbers >> bits) & ((1 << 64 - bits) - 1)  # no sign comes in


@cache
def small_keys(device: torch.device) -> Tensor:
    """Return all small keys, `BLOCK_BYTES` x `KEYS_OF_BYTE`, as int8."""
    numbers = splitmixes(KEYS_FROM + torch.arange(2 * BLOCK_BYTES, device=device))
    lanes = [(_shifted(numbers, 8 * lane) & 127) - 64 for lane in range(8)]
    return torch.stack(lanes, -1).reshape(BLOCK_BYTES, KEYS_OF_BYTE).to(torch.int8)


@cache
def lane_factors(device: torch.device) -> Tensor:
    """Return the factors of the lanes, `KEYS_OF_BYTE` x 2, as int64."""
    counters = torch.arange(2 * KEYS_OF_BYTE, device=device)
    return (splitmixes(LANES_FROM + counters) | 1).view(KEYS_OF_BYTE, 2)


def block_factors(device: torch.device, blocks: int) -> Tensor:
    """Return the factors of at least the first `blocks` blocks, 2 each, as int64."""
    return _block_factors(device, max(1 << 12, 1 << (blocks - 1).bit_length()))


@cache
def _block_factors(device: torch.device, blocks: int) -> Tensor:
    counters = torch.arange(2 * blocks, device=device)
    return (splitmixes(BLOCKS_FROM + counters) | 1).view(blocks, 2)
