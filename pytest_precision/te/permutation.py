"""MoE token permutation: copies tokens into expert order, and sums their results by weight.

The kernels add in the dtype of the rows, one expert of a token after the other, and round each
product and sum once, together (a fused multiply-add). So do these functions, but that torch rounds
to fp16 by way of fp32. A row that the kernels leave unset is 0 here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def moe_permute_fwd(
    input: Tensor,
    dtype: int,
    indices: Tensor,
    num_out_tokens: int,
    workspace: Sequence[Tensor],
    max_expanded_token_num: int,
) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    """Copy each token once for each of its experts, into rows sorted by expert.

    Args:
        input: the tokens, [tokens, columns].
        dtype: not read; the rows have the dtype of the tokens.
        indices: int32 [tokens, experts of a token]. A negative number sorts behind all experts.
        num_out_tokens: rows to keep, all of them if 0; copies beyond them are dropped.
        workspace: memory that only a GPU needs; it is returned.
        max_expanded_token_num: not read; it is the size of that memory.

    Returns:
        The rows, and for each choice and token the row of the copy (-1 if it was dropped), flat.
    """
    tokens, choices = indices.shape
    keys = indices.reshape(-1).to(torch.int64) & 0xFFFFFFFF
    order = keys.argsort(stable=True)
    row_count = num_out_tokens if num_out_tokens > 0 else order.numel()
    rows = input.new_zeros((row_count, input.shape[1]))
    source = order[:row_count] // choices
    rows[: source.numel()] = input[source]
    places = torch.arange(order.numel(), dtype=torch.int32)
    places[row_count:] = -1
    row_id_map = torch.empty_like(places)
    row_id_map[(order % choices) * tokens + order // choices] = places
    return rows, row_id_map, workspace


def moe_unpermute_fwd(
    input: Tensor,
    dtype: int,
    row_id_map: Tensor,
    prob: Tensor,
    num_tokens: int,
    topK: int,  # noqa: N803 (the name is the compiled module's)
) -> Tensor:
    """Return the sum of each token's expert rows, weighted by `prob` if that is not empty.

    Args:
        input: the rows.
        dtype: not read; the sums have the dtype of the rows.
        row_id_map: the rows of each choice and token, as `moe_permute_fwd` returns them.
        prob: fp32 [tokens, choices].
        num_tokens: number of tokens.
        topK: choices of a token.
    """
    # In fp64 products are exact, and sums nearly so.
    weights = prob.to(input.dtype).double() if prob.numel() else None
    total = input.new_zeros((num_tokens, input.shape[1]))
    for choice, rows in enumerate(row_id_map.view(topK, num_tokens).long()):
        has_row = (rows >= 0).unsqueeze(1)
        taken = input[rows.clamp(min=0)].double()
        if weights is not None:
            taken *= weights[:, choice : choice + 1]
        added = total + taken if choice else taken  # the first is not added to 0, which has a sign
        total = torch.where(has_row, added.to(input.dtype), total)
    return total


moe_permute_bwd = moe_unpermute_fwd


def moe_unpermute_bwd(
    input_bwd: Tensor, input_fwd: Tensor, dtype: int, row_id_map: Tensor, prob: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the expert rows and of `prob`, 0 where a row was dropped.

    Args:
        input_bwd: the gradients of the tokens.
        input_fwd: the rows of the forward.
        dtype: not read; the gradients have the dtype of `input_bwd`.
        row_id_map: the rows of each choice and token.
        prob: fp32 [tokens, choices]; without elements, each token has one row of weight 1.
    """
    tokens, choices = prob.shape if prob.numel() else (row_id_map.numel(), 1)
    gradients = input_bwd.new_zeros((input_fwd.shape[0], input_bwd.shape[1]))
    of_weights = torch.zeros((tokens, choices), dtype=torch.float32)
    for choice, rows in enumerate(row_id_map.view(choices, tokens).long()):
        token_ids = (rows >= 0).nonzero().squeeze(1)
        rows, grad = rows[token_ids], input_bwd[token_ids]
        if prob.numel():
            gradients[rows] = grad * prob[token_ids, choice : choice + 1].to(grad.dtype)
            of_weights[token_ids, choice] = (grad * input_fwd[rows]).float().sum(1)
        else:
            gradients[rows] = grad
    return gradients, of_weights
