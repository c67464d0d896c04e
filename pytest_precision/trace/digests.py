"""Compute the digests that a trace stores in place of large tensors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

import torch.distributed as dist
import xxhash
from torch import Tensor

from pytest_precision._torch.dispatch import memory_on_cpu

memcmp = ctypes.CDLL(None).memcmp
"""C's own: two addresses and a number of bytes to 0 if these are equal. It releases the lock of the
interpreter."""
memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

UNDIGESTED_BYTES = 64
"""Bytes up to which a tensor is kept as it is: a digest and its place would take as much."""

COPIED_BYTES = 4 << 10
"""Bytes up to which a tensor is copied where its digest is not asked for at once: one digest takes
longer than a copy, those of many together do not. A step keeps up to three such copies of each
weight."""

READ = frozenset({"loss", "grad_norm"})
"""Kinds whose values say whether a run proves anything; they are kept whatever their size."""

DIGESTED_ELSEWHERE = frozenset({"weight", "made_weight", "wrong_weight"})
"""Kinds of which a process without this package may have sent a digest, whatever their size."""

THREADS = 2
"""Threads per rank that compute digests, if it has as many cores: memory feeds no more."""

SMALL_RUN = 1 << 19
"""Parameters times train steps up to which all values are kept, some 10 MB per rank in fp32."""


def digest_threads(ranks: int) -> int:
    """Return the number of threads with which each of `ranks` processes computes digests."""
    return min(THREADS, max(1, (os.cpu_count() or 1) // ranks))


def digest(tensor: Tensor) -> str:
    """Return the xxh3-128 digest, hexadecimal, of a tensor's bytes in row-major order."""
    ordered = in_order(tensor.detach())  # a copy of a transposed tensor, and of one on a GPU
    return xxhash.xxh3_128_hexdigest(bytes_of(ordered))


def content_digest(tensor: Tensor, start: int, stop: int) -> str:
    """Return the digest that a log of operations has of elements of a contiguous CPU tensor.

    Args:
        tensor: any shape and dtype.
        start: number of the first element, in row-major order.
        stop: number of the element after the last one.

    Returns:
        The xxh3-64 digest, hexadecimal; of equal elements, `=`, the hexadecimal bytes of one of
        them, `x` and their number.
    """
    size = tensor.element_size()
    address = tensor.data_ptr() + start * size
    nbytes = (stop - start) * size
    first = ctypes.string_at(address, size)
    same_ends = nbytes == size or first == ctypes.string_at(address + nbytes - size, size)
    if same_ends and not memcmp(address, address + size, nbytes - size):
        return f"={first.hex()}x{nbytes // size}"
    return xxhash.xxh3_64_hexdigest((ctypes.c_char * nbytes).from_address(address))


def in_order(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU with its bytes in row-major order and no lazy conjugation."""
    return memory_on_cpu(tensor).resolve_conj().resolve_neg().contiguous()


def kept_as_it_is(kind: str, nbytes: int) -> bool:
    """Return whether a trace stores values rather than a digest, as it does for losses."""
    return nbytes <= UNDIGESTED_BYTES or kind in READ


def may_be_digest(kind: str, nbytes: int) -> bool:
    """Return whether a trace may have no more than a digest of a tensor."""
    return kind in DIGESTED_ELSEWHERE or not kept_as_it_is(kind, nbytes)


def bytes_of(tensor: Tensor) -> ctypes.Array[ctypes.c_char]:
    """Return a view of a contiguous CPU tensor's memory, which must outlive the view."""
    # Not through numpy(): that forbids the storage of an observed tensor to be resized, which FSDP2
    # does with its unsharded parameters.
    nbytes = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * nbytes).from_address(tensor.data_ptr())


def elements(parameters: Iterable[tuple[str, Tensor]]) -> int:
    """Return the number of parameter elements over all ranks, counting each name once.

    It is a collective. The number decides what is recorded, and so must be the same on both sides,
    although a rank may hold only a part of the model, such as a stage of a pipeline.
    """
    sizes = {name: parameter.numel() for name, parameter in parameters}
    all_sizes: list[dict[str, int]] = [sizes] * dist.get_world_size()
    dist.all_gather_object(all_sizes, sizes)
    return sum(
        {name: size for rank_sizes in all_sizes for name, size in rank_sizes.items()}.values()
    )
