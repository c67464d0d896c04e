"""`lin8-128`: every form computes its definition, and any cut of a tensor adds up to the whole."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_precision.engine.observation import Chunk, Place, Span, piece
from pytest_precision.trace import lin8, lin8_sums
from pytest_precision.trace.lin8_definition import BLOCK_BYTES, MODULUS, sums_of
from pytest_precision.trace.lin8_keys import small_keys

DTYPES = [
    *(torch.uint8, torch.bool, torch.int16, torch.bfloat16, torch.float16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
]
"""Dtypes of all sizes of elements, and those that few operators take."""


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return a tensor of random bytes."""
    generator = torch.Generator().manual_seed(seed)
    most = 2 if dtype is torch.bool else 256
    nbytes = prod(shape) * dtype.itemsize
    content = torch.randint(0, most, (nbytes,), dtype=torch.uint8, generator=generator)
    return content.view(dtype).view(shape) if nbytes else torch.empty(shape, dtype=dtype)


def whole(shape: tuple[int, ...]) -> Chunk:
    return Chunk((0,) * len(shape), shape)


@settings(deadline=None, max_examples=25)
@given(st.binary(max_size=2 * BLOCK_BYTES + 99), st.integers(0, 3 * BLOCK_BYTES), st.booleans())
def test_all_forms_compute_the_definition(content: bytes, start: int, on_device: bool) -> None:
    """A recording of a GPU is held against one of a CPU: each sum is that of plain integers."""
    flat = (
        torch.frombuffer(bytearray(content), dtype=torch.int8)
        if content
        else drawn((0,), torch.uint8)
    )
    part = lin8.DigestedPart(flat, (start + len(content),), Span(start, start + len(content)))
    form = lin8_sums.DeviceSums(1, flat.device) if on_device else lin8_sums.HostSums(1)
    form.take(0, lin8.flat_bytes(flat), part)
    (sums,) = form.finished()
    assert tuple(total % MODULUS for total in sums.tolist()) == sums_of(content, start)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), max_size=4).map(tuple), st.sampled_from(DTYPES), st.data())
def test_chunks_add_up(shape: tuple[int, ...], dtype: torch.dtype, data: st.DataObject) -> None:
    """A tensor of any dtype, cut anywhere along any dimension and again, is the sum of chunks."""
    tensor = drawn(shape, dtype)
    chunks = [whole(shape)]
    for _ in range(data.draw(st.integers(0, 6)) if shape else 0):
        cut = chunks.pop(data.draw(st.integers(0, len(chunks) - 1)))
        dim = data.draw(st.integers(0, len(shape) - 1))
        at = data.draw(st.integers(0, cut.sizes[dim]))
        for start, size in ((0, at), (at, cut.sizes[dim] - at)):  # one of them may be empty
            offsets, sizes = [*cut.offsets], [*cut.sizes]
            offsets[dim], sizes[dim] = offsets[dim] + start, size
            chunks.append(Chunk(tuple(offsets), tuple(sizes)))
    parts = [lin8.DigestedPart(region(tensor, chunk), shape, chunk) for chunk in chunks]
    assert lin8.added_digest(lin8.partial_digests(parts)) == lin8.additive_digest(tensor)


def region(tensor: Tensor, chunk: Chunk) -> Tensor:
    content = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        content = content.narrow(dim, offset, size)
    return content.view(tensor.dtype) if tensor.element_size() == 1 else content


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 20_000), st.sampled_from(DTYPES), st.data())
def test_spans_add_up(size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    """A flat parameter is cut at any element, and spans of it may be empty."""
    tensor = drawn((size,), dtype)
    cuts = data.draw(st.lists(st.integers(0, size), max_size=5))
    spans = [Span(*ends) for ends in pairwise(sorted([0, *cuts, size]))]
    parts = [lin8.DigestedPart(tensor[span.start : span.stop], (size,), span) for span in spans]
    assert lin8.added_digest(lin8.partial_digests(parts)) == lin8.additive_digest(tensor)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((300, 2048), 1),
        ((300, 5120), 1),
        ((257, 5000), 1),
        ((3, 130, 515), 2),
        ((9, 70_000), 1),
        ((64, 33, 3, 3), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["host", "device"])
def test_large_shards_add_up(shape: tuple[int, ...], dim: int, form: str, monkeypatch) -> None:
    """Rows at every distance are summed: few of a kind, many, and longer than many blocks."""
    if form == "device":
        monkeypatch.setattr(
            lin8, "sums_for", lambda device, parts: lin8_sums.DeviceSums(parts, device)
        )
    tensor, start, shards = drawn(shape, torch.bfloat16), 0, []
    for shard in tensor.chunk(3, dim):
        offsets = tuple(start if axis == dim else 0 for axis in range(len(shape)))
        shards.append(lin8.DigestedPart(shard, shape, Chunk(offsets, tuple(shard.shape))))
        start += shard.shape[dim]
    assert lin8.added_digest(lin8.partial_digests(shards)) == lin8.additive_digest(tensor)


def test_a_bit_elsewhere_changes_all_of_it() -> None:
    """Equal bytes at other places, one flipped bit and one more zero are all other digests."""
    tensor = torch.zeros(3 * BLOCK_BYTES, dtype=torch.uint8)
    texts = {lin8.additive_digest(tensor), lin8.additive_digest(tensor[:-1])}
    for place in (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES):
        for bit in (1, 128):
            flipped = tensor.clone()
            flipped[place] = bit
            texts.add(lin8.additive_digest(flipped))
    assert len(texts) == 12
    assert lin8.digest_of_zeros(3 * BLOCK_BYTES) == lin8.additive_digest(tensor)


@pytest.mark.parametrize(
    "make", [torch.Tensor.t, torch.conj, lambda t: t[:1, :1].conj().imag, lambda t: t[:, ::2]]
)
def test_bytes_are_those_in_row_major_order(make) -> None:
    """Strides, and marks that say how memory is read, change no digest."""
    tensor = make(torch.randn(5, 6, dtype=torch.complex64))
    assert lin8.additive_digest(tensor) == lin8.additive_digest(
        tensor.clone().resolve_conj().resolve_neg().contiguous()
    )


def test_products_in_fp32_are_exact(monkeypatch) -> None:
    """Nor does autocast round them to bf16, nor do the largest sums of a block leave 24 bits."""
    lane = small_keys(torch.device("cpu"))[:, 0]
    largest = torch.where(lane < 0, -128, 127).to(torch.int8)
    tensor = torch.cat([largest, drawn((5 * BLOCK_BYTES,), torch.uint8).view(torch.int8)])
    plain = lin8.additive_digest(tensor)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with torch.autocast("cpu"):
        assert lin8.additive_digest(tensor) == plain


def shards_on_mesh(
    tensor: Tensor, mesh_shape: tuple[int, ...], placements: list[Placement]
) -> dict[Place, str]:
    """Return the digest of each distinct shard of eight ranks, none of which runs."""
    parts = {}
    for rank in range(8):
        dist.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", mesh_shape)
            shard = piece(
                "param", "w", distribute_tensor(tensor, mesh, placements, src_data_rank=None)
            )
            parts[shard.place] = lin8.partial_digest(shard.tensor, shard.shape, shard.place)
        finally:
            dist.destroy_process_group()
    return parts


@pytest.mark.parametrize(
    ("mesh_shape", "placements"),
    [
        ((8,), [Shard(0)]),
        ((4, 2), [Shard(0), Shard(1)]),
        ((4, 2), [Replicate(), Shard(0)]),
        ((4, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
        ((2, 4), [Shard(1), Shard(1)]),
    ],
    ids=str,
)
def test_shards_of_a_mesh_add_up(mesh_shape: tuple[int, ...], placements: list[Placement]) -> None:
    """FSDP2, HSDP, tensor parallelism and both at once, unevenly: some ranks hold nothing."""
    for shape in ((13, 5), (3, 70)):
        tensor = drawn(shape, torch.bfloat16)
        parts = shards_on_mesh(tensor, mesh_shape, placements)
        assert lin8.added_digest(parts.values()) == lin8.additive_digest(tensor)


@pytest.mark.nightly
@pytest.mark.parametrize("block", [0, 1, 5])
def test_structured_differences_have_digests_of_their_own(block: int) -> None:
    """Signs, powers of two, swaps and single bits: what defects do, and what sums are weak at."""
    base = torch.zeros(2 * BLOCK_BYTES, dtype=torch.uint8)
    texts: set[str] = set()
    changes = 0
    for place in range(0, BLOCK_BYTES, 3):
        for bit in range(8):
            changed = base.clone()
            changed[place] = 1 << bit
            start = block * BLOCK_BYTES
            total = start + len(changed)
            texts.add(lin8.partial_digest(changed, (total,), Span(start, total)))
            changed[place + 1] = 1 << bit
            texts.add(lin8.partial_digest(changed, (total,), Span(start, total)))
            changes += 2
    assert len(texts) == changes
    for part in (slice(0, 16), slice(16, 32)):  # not one of the two sums is equal, either
        assert len({text[part] for text in texts}) == changes
