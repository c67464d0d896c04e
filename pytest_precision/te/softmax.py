"""Softmax of attention scores, with or without a mask, and its gradient, computed in fp32.

Results are rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASKED = -10000.0
"""What the kernel with a mask of the user's own puts in place of a masked score."""


def scaled_softmax_forward(input: Tensor, scale: float) -> Tensor:
    """Return the softmax of scaled scores along the last dimension."""
    return torch.softmax(input.float() * scale, -1).to(input.dtype)


def scaled_masked_softmax_forward(input: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the softmax of scaled scores without those under `mask`; all masked gives 0."""
    hidden = mask.bool()
    scores = (input.float() * scale).masked_fill(hidden, MASKED)
    weights = torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return weights.to(input.dtype)


def scaled_aligned_causal_masked_softmax_forward(input: Tensor, scale: float) -> Tensor:
    """Return the causal softmax of scaled scores, with the last query aligned to the last key."""
    queries, keys = input.shape[-2:]
    later = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    scores = (input.float() * scale).masked_fill(later, float("-inf"))
    return torch.softmax(scores, -1).to(input.dtype)


scaled_upper_triang_masked_softmax_forward = scaled_aligned_causal_masked_softmax_forward


def scaled_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale: float) -> Tensor:
    """Return the softmax's gradient for the scores before scaling; masked scores get 0."""
    gradient, weights = output_grad.float(), softmax_results.float()
    along = (gradient * weights).sum(-1, keepdim=True)
    return ((gradient - along) * weights * scale).to(softmax_results.dtype)


scaled_masked_softmax_backward = scaled_softmax_backward
scaled_aligned_causal_masked_softmax_backward = scaled_softmax_backward
scaled_upper_triang_masked_softmax_backward = scaled_softmax_backward
