"""Zero padding of groups of rows for quantized GEMMs, its removal, and dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fused_multi_row_padding(
    input: Tensor, output: Tensor, input_row_list: Sequence[int], padded_row_list: Sequence[int]
) -> None:
    """Copy groups of rows into longer groups, padded with zeros."""
    output.zero_()
    _copy(input, output, input_row_list, padded_row_list, input_row_list)


def fused_multi_row_unpadding(
    input: Tensor, output: Tensor, input_row_list: Sequence[int], unpadded_row_list: Sequence[int]
) -> None:
    """Remove the padding from groups of rows."""
    _copy(input, output, input_row_list, unpadded_row_list, unpadded_row_list)


def dropout_fwd(
    input: Tensor, dropout_probability: float, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the input with random elements dropped, and the mask of kept ones.

    torch's generator draws them, so that they are not those that a GPU would drop.
    """
    keep_mask = torch.rand(input.shape, dtype=torch.float32) >= dropout_probability
    left = (input.float() * keep_mask / (1.0 - dropout_probability)).to(input.dtype)
    return left if out is None else out.copy_(left), keep_mask.to(torch.uint8)


def dropout_bwd(
    grad_output: Tensor,
    mask: Tensor,
    dropout_probability: float,
    grad_input: Tensor | None = None,
) -> Tensor:
    """Return dropout's input gradient: 0 for dropped elements, scaled up for the kept ones."""
    keep_mask = mask.view(grad_output.shape)
    input_grad = (grad_output.float() * keep_mask / (1.0 - dropout_probability)).to(
        grad_output.dtype
    )
    return input_grad if grad_input is None else grad_input.copy_(input_grad)


def _copy(
    source: Tensor,
    target: Tensor,
    read: Sequence[int],
    written: Sequence[int],
    copied: Sequence[int],
) -> None:
    begin = to = 0
    for rows_read, rows_written, rows in zip(read, written, copied, strict=True):
        target[to : to + rows] = source[begin : begin + rows]
        begin += rows_read
        to += rows_written
