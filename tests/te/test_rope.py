"""Rotary position embeddings against complex numbers, and their gradients against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_precision.te import rope
from pytest_precision.te.enums import NVTE_QKV_Format as Order

LENGTH, BATCH, HEADS, WIDTH, TURNED = 8, 3, 2, 10, 6


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(made: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(made.double(), exact.double(), rtol=1e-5, atol=1e-5)


def angles(positions: int, interleaved: bool) -> Tensor:
    """Return a table of angles, the same for both columns of a pair."""
    each = torch.outer(torch.arange(positions) + 1.0, 0.3 ** torch.arange(1, TURNED // 2 + 1))
    both = each.repeat_interleave(2, -1) if interleaved else torch.cat((each, each), -1)
    return both.view(positions, 1, 1, TURNED)


def turned(x: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    """Turn [..., columns] by one row of angles, as complex numbers in fp64."""
    x, rest = x.double().split((TURNED, x.shape[-1] - TURNED), -1)
    real, imaginary = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    each = table.double()[0::2] if interleaved else table.double()[: TURNED // 2]
    made = torch.complex(real, imaginary) * torch.polar(torch.ones_like(each), each)
    parts = (made.real, made.imag)
    whole = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((whole, rest), -1)


def moved(x: Tensor, order: Order) -> Tensor:
    return x if order is Order.NVTE_SBHD else x.transpose(0, 1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("order", [Order.NVTE_SBHD, Order.NVTE_BSHD])
@pytest.mark.parametrize("start", [None, [0, 3, 2]])
def test_each_token_is_turned_by_its_position(
    interleaved: bool, order: Order, start: list[int] | None
) -> None:
    """Sequences may start elsewhere, and columns without an angle are copied."""
    x, grad = drawn(LENGTH, BATCH, HEADS, WIDTH), drawn(LENGTH, BATCH, HEADS, WIDTH, seed=1)
    table = angles(20, interleaved)
    exact = x.double().requires_grad_()
    rows = [
        torch.stack(
            [
                turned(exact[s, b], table[s + (start[b] if start else 0), 0, 0], interleaved)
                for b in range(BATCH)
            ]
        )
        for s in range(LENGTH)
    ]
    expected = torch.stack(rows)
    (of_input,) = torch.autograd.grad(expected, exact, grad.double())
    options = (table, None if start is None else torch.tensor(start), order, interleaved, None)
    made = rope.fused_rope_forward(moved(x, order), *options, 1, 0)
    close(made, moved(expected.detach(), order))
    assert torch.equal(made[..., TURNED:], moved(x, order)[..., TURNED:])
    close(rope.fused_rope_backward(moved(grad, order), *options, 1, 0), moved(of_input, order))


def test_packed_sequences_each_begin_at_their_start() -> None:
    """Rows behind the last one belong to no sequence and become 0."""
    x, table = drawn(11, HEADS, WIDTH), angles(20, False)
    ends, start = torch.tensor([0, 4, 4, 9], dtype=torch.int32), torch.tensor([0, 7, 2])
    options = (table, start, Order.NVTE_THD, False, ends, 1, 0)
    made = rope.fused_rope_forward(x, *options)
    places = [0, 1, 2, 3, 2, 3, 4, 5, 6]
    for row, place in enumerate(places):
        close(made[row], turned(x[row], table[place, 0, 0], False))
    assert not made[9:].any()
    close(rope.fused_rope_backward(made, *options)[:9], x[:9])


@pytest.mark.parametrize("order", [Order.NVTE_SBHD, Order.NVTE_THD])
def test_ranks_that_share_a_sequence_have_a_piece_from_either_end(order: Order) -> None:
    """Together they turn it as one rank does."""
    x, table = drawn(12, 1, HEADS, WIDTH), angles(12, True)
    whole = rope.fused_rope_forward(x, table, None, Order.NVTE_SBHD, True, None, 1, 0)
    pieces = torch.arange(12).view(6, 2)
    for rank in range(3):
        mine = torch.cat((pieces[rank], pieces[5 - rank]))
        given = x[mine] if order is Order.NVTE_SBHD else x[mine, 0]
        ends = None if order is Order.NVTE_SBHD else torch.tensor([0, 12])
        made = rope.fused_rope_forward(given, table, None, order, True, ends, 3, rank)
        assert torch.equal(made.view(4, HEADS, WIDTH), whole[mine, 0])


@pytest.mark.parametrize("order", [Order.NVTE_SBHD, Order.NVTE_BSHD])
def test_queries_keys_and_values_in_one_tensor(order: Order) -> None:
    """Queries and keys are turned by tables of their own, and values are copied."""
    parts = [2 * WIDTH, WIDTH, WIDTH]
    x = drawn(LENGTH, BATCH, HEADS, sum(parts))
    tables = angles(20, False), angles(20, False) / 2
    position = (order, False, 1, 0)
    made = rope.fused_qkv_rope_forward(
        moved(x, order).contiguous(), *tables, None, parts, *position
    )
    split = moved(x, order).split(parts, -1)
    for out, part, table in zip(made, split, (*tables, None), strict=True):
        heads = part.reshape(*part.shape[:2], -1, WIDTH)
        single = (table, None, order, False, None, 1, 0)
        assert torch.equal(out, heads if table is None else rope.fused_rope_forward(heads, *single))
    back = rope.fused_qkv_rope_backward(*made, *tables, parts, *position)
    close(back, moved(x, order))


def test_a_low_precision_result_is_rounded_once() -> None:
    """The angles' cosines and sines are fp32's."""
    x, table = drawn(LENGTH, BATCH, HEADS, WIDTH).bfloat16(), angles(20, False)
    options = (table, None, Order.NVTE_SBHD, False, None, 1, 0)
    made = rope.fused_rope_forward(x, *options)
    assert torch.equal(made, rope.fused_rope_forward(x.float(), *options).bfloat16())
