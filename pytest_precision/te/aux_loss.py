"""The load-balancing loss of an MoE router, and the expert scores from which it is computed."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_precision.te.router import (
    EPSILON,
    SCORES,
    activated,
    best,
    logits_gradient,
    of_normalized,
    routing_output,
)


def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, score_function: str, routing_map_format: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all experts' normalized scores, the top-k routing map, and what backward needs.

    Args:
        logits: [..., experts].
        topk: number of experts of a token.
        score_function: "sigmoid", "softmax" or "sqrtsoftplus".
        routing_map_format: a byte or a bit for each expert.

    Returns:
        The scores in fp32, the map, and the scores before they were divided by their sum (the
        logits of "sqrtsoftplus").
    """
    exact = logits.float()
    raw = SCORES[score_function](exact)
    intermediate_output = exact if score_function == "sqrtsoftplus" else raw
    softmax = score_function == "softmax"
    scores = raw if softmax else raw / (raw.sum(-1, keepdim=True) + EPSILON)
    return (
        scores,
        routing_output(best(scores, topk), exact, routing_map_format),
        intermediate_output.clone(),
    )


def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor,
    grad_scores: Tensor,
    grad_logits: Tensor,
    topk: int,
    score_function: str,
) -> None:
    """Write the gradient of the router's logits, rounded once, to `grad_logits`."""
    scores = activated(intermediate_output, score_function)
    softmax = score_function == "softmax"
    gradient = grad_scores if softmax else of_normalized(grad_scores, scores)
    grad_logits.copy_(logits_gradient(gradient, scores, intermediate_output, score_function))


def fused_moe_aux_loss_fwd(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int | Tensor,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """Return the MoE auxiliary loss, and its coefficient and unrounded value as an fp32 pair.

    Args:
        probs: [tokens, columns], the scores.
        tokens_per_expert: [columns], how many tokens each expert gets.
        total_num_tokens: number of tokens by which the loss is divided, twice.
        num_experts: number of experts, of which `num_cols` is a multiple.
        num_rows: number of rows of `probs`; not read.
        num_cols: number of columns of `probs`; not read.
        topk: experts of a token.
        coeff: factor of the loss.
    """
    tokens = torch.as_tensor(total_num_tokens, dtype=torch.float32).reshape(())
    exact = torch.tensor(num_experts, dtype=torch.float32) * torch.tensor(
        coeff, dtype=torch.float32
    )
    factor = exact / topk / tokens / tokens
    total = (probs.float().sum(0) * tokens_per_expert.float()).sum() * factor
    return total.to(probs.dtype), torch.stack((factor, total))


fused_moe_aux_loss_fwd_graph_safe = fused_moe_aux_loss_fwd


def fused_moe_aux_loss_bwd(
    Const_buf: Tensor,  # noqa: N803 (the name is the compiled module's)
    tokens_per_expert: Tensor,
    num_rows: int,
    num_cols: int,
    grad_aux_loss: Tensor,
) -> Tensor:
    """Return the auxiliary loss's gradient for the expert scores, equal for every token."""
    row = Const_buf[0] * tokens_per_expert.float() * grad_aux_loss.float()
    return row.to(grad_aux_loss.dtype).expand(num_rows, num_cols).contiguous()
