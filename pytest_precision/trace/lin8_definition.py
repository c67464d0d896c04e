"""Define the digest `lin8-128` of bytes, in plain integers: its keys and its two sums.

Bytes lie in blocks of `BLOCK_BYTES`. The key of a byte is a product of two: an odd 64-bit number of
its block, and the sum over `KEYS_OF_BYTE` small keys of its place in the block, each times an odd
64-bit number of its lane. Sums over a block are thus products of small integers, exact in int32,
which matrix units compute; a small key has 7 bits, so that a pair of products also fits where a
processor adds pairs in 16 bits. The number of bytes counts with a key of its own.
"""

from __future__ import annotations

from functools import cache

BLOCK_BYTES = 4096
"""Bytes of a block."""

KEYS_OF_BYTE = 16
"""Small keys of each byte in a block, one a lane."""

BOTH_SUMS = (0, 1)
"""Numbers of the two sums."""

MODULUS = 1 << 64

BLOCKS_FROM, LANES_FROM, KEYS_FROM, SIZES_FROM = 1 << 40, 1 << 50, 1 << 52, 1 << 54
"""Counters from which the keys of blocks, lanes, places and of the number of bytes are made."""


def splitmix(counter: int) -> int:
    """Return the 64-bit number that the generator SplitMix64 makes of a counter."""
    mixed = (counter + 1) * 0x9E3779B97F4A7C15 % MODULUS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % MODULUS
    return mixed ^ mixed >> 31


@cache
def block_factor(half: int, block: int) -> int:
    """Return the factor of a block, for one of the two sums."""
    return splitmix(BLOCKS_FROM + 2 * block + half) | 1


def lane_factor(half: int, lane: int) -> int:
    """Return the factor of a lane, for one of the two sums."""
    return splitmix(LANES_FROM + 2 * lane + half) | 1


def small_key(place: int, lane: int) -> int:
    """Return the key, from -64 to 63, of a place in a block and a lane."""
    return (splitmix(KEYS_FROM + 2 * place + lane // 8) >> 8 * (lane % 8)) % 128 - 64


@cache
def key_in_block(half: int, place: int) -> int:
    """Return the key of a byte by its place in a block, for one of the two sums."""
    return (
        sum(lane_factor(half, lane) * small_key(place, lane) for lane in range(KEYS_OF_BYTE))
        % MODULUS
    )


def sums_of(content: bytes, start: int = 0) -> tuple[int, int]:
    """Return the two sums of bytes that begin at byte `start` of a tensor, in plain integers.

    This is the definition, which every other form agrees with.
    """
    first, second = (
        sum(
            (byte - 256 if byte > 127 else byte)
            * block_factor(half, at // BLOCK_BYTES)
            * key_in_block(half, at % BLOCK_BYTES)
            for at, byte in enumerate(content, start)
        )
        % MODULUS
        for half in BOTH_SUMS
    )
    return first, second
