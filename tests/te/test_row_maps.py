"""Permutation by a mask, chunks in another order, and padding, as their Triton kernels do them."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.te import row_maps

TOKENS, EXPERTS, WIDTH, BLOCK = 13, 5, 4, 6
STRIDES = (0,) * 12
"""Strides, which the plain forms do not read."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def routed() -> Tensor:
    """Return a mask in which tokens have none to four experts."""
    return drawn(TOKENS, EXPERTS, seed=5) > 0.2


def row_map(mask: Tensor) -> Tensor:
    made = torch.full((TOKENS, 2 * EXPERTS + 1), -9, dtype=torch.int32)
    workspace = torch.empty(EXPERTS, -(-TOKENS // BLOCK), dtype=torch.int32)
    row_maps.row_id_map_pass_1(mask, TOKENS, *STRIDES[:4], made, workspace, BLOCK)
    row_maps.row_id_map_pass_2(made, workspace, TOKENS, *STRIDES[:2], 16, BLOCK)
    row_maps.row_id_map_pass_3(made, *STRIDES[:2], EXPERTS, 8)
    return made


def copies(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token and the expert of each row: one expert after the other."""
    pairs = mask.t().nonzero()
    return pairs[:, 1], pairs[:, 0]


def test_a_row_map_lists_the_rows_and_experts_of_a_token() -> None:
    """The last row comes first, as the kernel sorts them."""
    mask = routed()
    made, (token, expert) = row_map(mask), copies(mask)
    assert torch.equal(made[:, -1], mask.sum(1).int())
    for one in range(TOKENS):
        rows = (token == one).nonzero().flatten().flip(0)
        assert torch.equal(made[one, : len(rows)].long(), rows)
        assert torch.equal(made[one, EXPERTS : EXPERTS + len(rows)].long(), expert[rows])


def test_rows_chances_and_scales_are_permuted_and_come_back() -> None:
    """A token of chance 0 is a padded one, whose row is 0; an expert's rows may begin later."""
    mask, x, chances = routed(), drawn(TOKENS, WIDTH), drawn(TOKENS, EXPERTS, seed=1)
    token, expert = copies(mask)
    chances[token[2], expert[2]] = 0.0
    offsets = torch.arange(EXPERTS) * 2
    places = torch.arange(len(token)) + offsets[expert]
    rows = len(token) + 2 * EXPERTS
    out = [torch.zeros(rows, WIDTH), torch.zeros(rows), torch.zeros(rows, 1)]
    made = row_map(mask)
    given = (x, made, chances, x[:, :1], out[2], offsets)
    row_maps.permute(*given, out[0], out[1], PERMUTE_PROBS=True)
    expected = x[token]
    expected[2] = 0.0
    assert torch.equal(out[0][places], expected)
    assert torch.equal(out[1][places], chances[token, expert])
    assert torch.equal(out[2][places], x[token, :1])
    assert out[0].count_nonzero() == expected.count_nonzero()
    back, of_chances = torch.empty(TOKENS, WIDTH), torch.empty(TOKENS, EXPERTS)
    row_maps.unpermute(out[0], made, None, out[1], offsets, back, of_chances)
    summed = torch.zeros(TOKENS, WIDTH).index_add(0, token, expected)
    torch.testing.assert_close(back, summed)
    assert torch.equal(of_chances, chances * mask)


def test_merging_by_weights_and_its_gradients() -> None:
    """They are those of plain torch in fp64."""
    mask, weights = routed(), drawn(TOKENS, EXPERTS, seed=1)
    token, expert = copies(mask)
    x, grad = drawn(len(token), WIDTH), drawn(TOKENS, WIDTH, seed=2)
    exact = [t.double().requires_grad_() for t in (x, weights)]
    scaled = exact[0] * exact[1][token, expert].unsqueeze(1)
    y = torch.zeros(TOKENS, WIDTH, dtype=torch.float64).index_add(0, token, scaled)
    expected = torch.autograd.grad(y, exact, grad.double())
    made, out = row_map(mask), torch.empty(TOKENS, WIDTH)
    row_maps.unpermute(x, made, weights, None, None, out, None)
    torch.testing.assert_close(out.double(), y.detach(), rtol=1e-6, atol=1e-6)
    found = torch.empty_like(x), torch.empty_like(weights)
    row_maps.unpermute_bwd_with_merging_probs(grad, x, weights, made, None, *STRIDES, *found)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)


def test_chunks_are_put_in_another_order_and_back() -> None:
    """Tokens behind the last chunk stay where they are."""
    sizes, order = torch.tensor([3, 0, 2, 4]), torch.tensor([2, 3, 0, 1])
    x, chances = drawn(11, WIDTH), drawn(11, seed=1)
    places = torch.empty(11, dtype=torch.int32)
    row_maps.make_chunk_sort_map(sizes, order, places, 4, IDX_LOAD_WIDTH=4)
    parts = torch.arange(9).split(sizes.tolist())
    expected = torch.cat([*(parts[chunk] for chunk in order), torch.tensor([9, 10])])
    made = torch.empty_like(x), torch.empty_like(chances)
    given = (*STRIDES[:7], *made)
    row_maps.sort_chunks_by_map(x, places, chances, *given, PERMUTE_PROBS=True, FORWARD=True)
    assert torch.equal(made[0], x[expected])
    assert torch.equal(made[1], chances[expected])
    back = torch.empty_like(x)
    given = (*STRIDES[:7], back, None)
    row_maps.sort_chunks_by_map(made[0], places, None, *given, PERMUTE_PROBS=False, FORWARD=False)
    assert torch.equal(back, x)


def test_a_matrix_is_padded_with_zeros() -> None:
    """In its lower right."""
    x, out = drawn(3, 2), torch.full((5, 4), 9.0)
    row_maps.zero_pad(x, out, 3, 2, 5, 4)
    assert torch.equal(out[:3, :2], x)
    assert out.sum() == x.sum()
