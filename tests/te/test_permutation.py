"""Permutation: rows go to their experts and come back, with the gradients of plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.te import permutation

BF16 = torch.bfloat16
NONE = torch.empty(0)
TOKENS, CHOICES, EXPERTS, WIDTH = 12, 3, 5, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def experts() -> Tensor:
    """Return the experts of each token, all different."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randperm(EXPERTS, generator=generator)[:CHOICES] for _ in range(TOKENS)]
    return torch.stack(rows).int()


def permuted(x: Tensor, indices: Tensor, kept: int = 0) -> tuple[Tensor, Tensor]:
    rows, row_id_map, workspace = permutation.moe_permute_fwd(x, 0, indices, kept, ["memory"], 99)
    assert workspace == ["memory"]
    return rows, row_id_map


def test_rows_lie_one_expert_after_the_other() -> None:
    """Within an expert they keep the order of the tokens."""
    x, indices = drawn(TOKENS, WIDTH), experts()
    rows, _ = permuted(x, indices)
    expected = [x[token] for e in range(EXPERTS) for token in range(TOKENS) if e in indices[token]]
    assert torch.equal(rows, torch.stack(expected))


def test_what_was_permuted_comes_back() -> None:
    """With weights of sum 1 the tokens are as they were; without, each counts once a choice."""
    x, indices = drawn(TOKENS, WIDTH), experts()
    rows, row_id_map = permuted(x, indices)
    powers = torch.tensor([0.5, 0.25, 0.25]).repeat(TOKENS, 1)
    back = permutation.moe_unpermute_fwd(rows, 0, row_id_map, powers, TOKENS, CHOICES)
    assert torch.equal(back, x)
    summed = permutation.moe_unpermute_fwd(rows, 0, row_id_map, NONE, TOKENS, CHOICES)
    assert torch.equal(summed, x + x + x)


def test_gradients_are_those_of_gathering_and_adding() -> None:
    """Of the rows, of their weights, and of the tokens before they were permuted."""
    indices, weights = experts(), drawn(TOKENS, CHOICES, seed=1).softmax(-1)
    x, grad = drawn(TOKENS, WIDTH), drawn(TOKENS, WIDTH, seed=2)
    rows, row_id_map = permuted(x, indices)
    exact = [t.double().requires_grad_() for t in (rows, weights)]
    places = row_id_map.view(CHOICES, TOKENS).t().long()
    y = (exact[0][places] * exact[1].unsqueeze(-1)).sum(1)
    expected = torch.autograd.grad(y, exact, grad.double())
    found = permutation.moe_unpermute_bwd(grad, rows, 0, row_id_map, weights)
    for made, other in zip(found, expected, strict=True):
        torch.testing.assert_close(made.double(), other, rtol=1e-6, atol=1e-6)
    of_rows = drawn(*rows.shape, seed=4)
    token = x.double().requires_grad_()
    order = places.flatten().argsort() // CHOICES
    (of_tokens,) = torch.autograd.grad(token[order], token, of_rows.double())
    made = permutation.moe_permute_bwd(of_rows, 0, row_id_map, NONE, TOKENS, CHOICES)
    torch.testing.assert_close(made.double(), of_tokens, rtol=1e-6, atol=1e-6)


def test_copies_beyond_the_capacity_are_dropped() -> None:
    """They are the last ones, or those of experts with a negative number, and count as 0."""
    x, indices = drawn(TOKENS, WIDTH), experts()
    indices[4, 1] = -1
    kept = TOKENS * CHOICES - 1
    rows, row_id_map = permuted(x, indices, kept)
    assert rows.shape == (kept, WIDTH)
    assert row_id_map.view(CHOICES, TOKENS)[1, 4] == -1
    assert (row_id_map < 0).sum() == 1
    back = permutation.moe_unpermute_fwd(rows, 0, row_id_map, NONE, TOKENS, CHOICES)
    assert torch.equal(back[4], x[4] + x[4])
    assert torch.equal(back[5], x[5] + x[5] + x[5])
    weights = torch.ones(TOKENS, CHOICES)
    _, of_weights = permutation.moe_unpermute_bwd(x, rows, 0, row_id_map, weights)
    assert of_weights[4, 1] == 0
    assert (of_weights != 0).sum() == kept


def test_sums_are_rounded_at_each_expert() -> None:
    """The kernel adds in the dtype of the rows: 1 and 2**-8 and 2**-8 is 1 in bf16."""
    rows = torch.tensor([[1.0], [2.0**-8], [2.0**-8]], dtype=BF16)
    places = torch.arange(3, dtype=torch.int32)
    made = permutation.moe_unpermute_fwd(rows, 0, places, NONE, 1, 3)
    assert made.item() == 1.0


def test_a_token_with_one_expert_needs_no_weights() -> None:
    """Its gradient goes to its row as it is."""
    x, indices = drawn(TOKENS, WIDTH), experts()[:, :1]
    rows, row_id_map = permuted(x, indices)
    grad, _ = permutation.moe_unpermute_bwd(x, rows, 0, row_id_map, NONE)
    assert torch.equal(grad, rows)
