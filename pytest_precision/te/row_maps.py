"""Transformer Engine's Triton kernels for MoE permutation by a routing mask, written in torch.

A row map has one row per token and 2 * experts + 1 columns: the rows that the token is copied to,
the last one first; the experts of these rows; and how many there are. Sums are computed in fp32
and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def row_id_map_pass_1(routing_map: Tensor, tokens: int, *rest: Any) -> None:
    """Count each expert's tokens from 1 within each block of tokens; write 0 for other tokens."""
    *_, row_id_map, workspace, block = rest
    routed = routing_map.to(torch.int32)
    for number, start in enumerate(range(0, tokens, block)):
        part = routed[start : start + block]
        row_id_map[start : start + block, : routed.shape[1]] = part.cumsum(0) * part
        workspace[:, number] = part.sum(0)


def row_id_map_pass_2(row_id_map: Tensor, workspace: Tensor, tokens: int, *rest: Any) -> None:
    """Convert pass 1's numbers to row indices in the order of experts, and its zeros to -1."""
    block = rest[-1]
    before = workspace.flatten().cumsum(0).view(workspace.shape) - workspace
    for number, start in enumerate(range(0, tokens, block)):
        part = row_id_map[start : start + block, : workspace.shape[0]]
        part.copy_(torch.where(part == 0, -1, part + before[:, number] - 1))


def row_id_map_pass_3(
    row_id_map: Tensor, token_stride: int, expert_stride: int, experts: int, load_size: int
) -> None:
    """Sort each token's line: row numbers, then the experts of these rows, then the rows' count."""
    rows, order = row_id_map[:, :experts].sort(1, descending=True)
    row_id_map[:, :experts] = rows
    row_id_map[:, experts : 2 * experts] = order
    row_id_map[:, 2 * experts] = (rows >= 0).sum(1)


def permute(
    inp: Tensor,
    row_id_map: Tensor,
    probs: Tensor | None,
    scale: Tensor | None,
    permuted_scale: Tensor | None,
    pad_offsets: Tensor | None,
    output: Tensor,
    permuted_probs: Tensor | None,
    *sizes_and_strides: Any,
    **_: Any,
) -> None:
    """Copy each token, with its scale and probability, to the rows of its experts.

    A copy of probability 0 becomes 0.
    """
    for token, row, expert in _copies(row_id_map, pad_offsets):
        output[row] = inp[token]
        if scale is not None and permuted_scale is not None:
            permuted_scale[row] = scale[token]
        if probs is not None and permuted_probs is not None:
            chance = probs[token, expert]
            permuted_probs[row] = chance
            output[row] = torch.where((chance == 0).unsqueeze(1), 0, output[row]).to(output.dtype)


def unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None,
    permuted_probs: Tensor | None,
    pad_offsets: Tensor | None,
    output: Tensor,
    unpermuted_probs: Tensor | None,
    *strides: Any,
    **_: Any,
) -> None:
    """Sum each token's expert rows, weighted if asked, and copy probabilities back to tokens."""
    total = torch.zeros(output.shape, dtype=torch.float32)
    if unpermuted_probs is not None:
        unpermuted_probs.zero_()
    for token, row, expert in _copies(row_id_map, pad_offsets):
        rows = inp[row].float()
        if merging_probs is not None:
            rows = rows * merging_probs[token, expert].float().unsqueeze(1)
        total[token] += rows
        if permuted_probs is not None and unpermuted_probs is not None:
            unpermuted_probs[token, expert] = permuted_probs[row]
    output.copy_(total)


def unpermute_bwd_with_merging_probs(
    grad: Tensor,
    fwd_input: Tensor,
    merging_probs: Tensor,
    row_id_map: Tensor,
    pad_offsets: Tensor | None,
    *rest: Any,
    **_: Any,
) -> None:
    """Write the gradients of the expert rows and of the merging probabilities."""
    act_grad, probs_grad = rest[12:14]
    probs_grad.zero_()
    for token, row, expert in _copies(row_id_map, pad_offsets):
        gradient = grad[token].float()
        weights = merging_probs[token, expert].float().unsqueeze(1)
        act_grad[row] = (gradient * weights).to(act_grad.dtype)
        products = fwd_input[row].float() * gradient
        probs_grad[token, expert] = products.sum(1).to(probs_grad.dtype)


def make_chunk_sort_map(
    split_sizes: Tensor, sorted_indices: Tensor, dst_rows: Tensor, num_splits: int, **_: Any
) -> None:
    """Compute the row number that each token gets when chunks of tokens are reordered.

    Tokens after the last chunk keep their rows.
    """
    sizes, order = split_sizes.long(), sorted_indices.long()
    begins = sizes.cumsum(0) - sizes
    ends = sizes[order].cumsum(0)
    dst_rows.copy_(torch.arange(dst_rows.numel()))
    for chunk, end in zip(order.tolist(), ends.tolist(), strict=True):
        size, begin = int(sizes[chunk]), int(begins[chunk])
        dst_rows[begin : begin + size] = torch.arange(end - size, end, dtype=dst_rows.dtype)


def sort_chunks_by_map(
    inp: Tensor,
    row_id_map: Tensor,
    probs: Tensor | None,
    *rest: Any,
    FORWARD: bool,  # noqa: N803 (the name is the kernel's)
    **_: Any,
) -> None:
    """Move rows and probabilities to the row numbers of a map, or back if not `FORWARD`."""
    output, permuted_probs = rest[7:9]
    places = row_id_map.long()
    pairs = [(inp, output)] + ([] if probs is None else [(probs, permuted_probs)])
    for source, target in pairs:
        if FORWARD:
            target[places] = source
        else:
            target.copy_(source[places])


def zero_pad(inp: Tensor, out: Tensor, *_: Any, **__: Any) -> None:
    """Copy a matrix into the upper left corner of a larger one, and zero the rest."""
    out.zero_()
    out[: inp.shape[0], : inp.shape[1]] = inp


def _copies(
    row_id_map: Tensor, pad_offsets: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (tokens, rows, experts) for every token's first copy, then for all second ones, etc."""
    experts = row_id_map.shape[1] // 2
    number = row_id_map[:, -1]
    for copy in range(int(number.max()) if number.numel() else 0):
        token = (number > copy).nonzero().squeeze(1)
        expert = row_id_map[token, experts + copy].long()
        row = row_id_map[token, copy].long()
        yield token, row if pad_offsets is None else row + pad_offsets[expert].long(), expert


ROW_MAP_KERNELS = {
    "_make_chunk_sort_map_kernel": make_chunk_sort_map,
    "_permute_kernel": permute,
    "_row_id_map_pass_1_kernel": row_id_map_pass_1,
    "_row_id_map_pass_2_kernel": row_id_map_pass_2,
    "_row_id_map_pass_3_kernel": row_id_map_pass_3,
    "_sort_chunks_by_map_kernel": sort_chunks_by_map,
    "_unpermute_bwd_with_merging_probs_kernel": unpermute_bwd_with_merging_probs,
    "_unpermute_kernel": unpermute,
    "zero_pad_kernel": zero_pad,
}
"""Name of a Triton kernel to the torch function that computes the same."""
