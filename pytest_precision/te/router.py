"""MoE routing on the CPU: scores of experts in fp32, the top-k choice, and expert weights.

Of equal scores, that of the expert with the lower number is the better one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pytest_precision.errors import expected_but_got, named
from pytest_precision.te.enums import NVTERoutingMapFormat

EPSILON = 1e-20
"""Added to a sum before a division by it."""


def sqrt_softplus(x: Tensor) -> Tensor:
    """Return the square root of softplus(x); above 20, softplus(x) is x itself."""
    return functional.softplus(x, threshold=20.0).double().sqrt().float()


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: torch.softmax(logits, -1),
    "sqrtsoftplus": sqrt_softplus,
}
"""Name of a score function to the function of fp32 logits."""


def fused_topk_with_score_function_fwd(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    routing_map_format: int,
    topk_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose each token's top-k experts from router logits, and compute their weights.

    Args:
        logits: [..., experts].
        topk: number of experts of a token.
        use_pre_softmax: whether the softmax is over all experts and not over the chosen ones.
        num_groups: groups of experts, of which only the best are chosen from; None for no groups.
        group_topk: how many groups; a group is as good as its best `topk / group_topk` experts.
        scaling_factor: factor of the weights.
        score_function: "sigmoid", "softmax" or "sqrtsoftplus".
        expert_bias: fp32 [experts], added to scores while experts are chosen.
        routing_map_format: a byte or a bit for each expert.
        topk_indices: memory for the numbers of the experts, instead of a map.

    Returns:
        The weights of all experts in the dtype of the logits, the map or the numbers, and what the
        gradient needs in fp32: scores, or the logits of "sqrtsoftplus".
    """
    _check(logits, topk, score_function, expert_bias)
    exact = logits.float()
    late = score_function == "softmax" and not use_pre_softmax
    scores = exact if late else SCORES[score_function](exact)
    judged = scores if expert_bias is None else scores + expert_bias
    if group_topk is not None and group_topk > 0:
        assert num_groups is not None
        _check_groups(logits.shape[-1], topk, num_groups, group_topk)
        judged = _of_best_groups(judged, topk, num_groups, group_topk)
    chosen = best(judged, topk)
    intermediate_output = exact if score_function == "sqrtsoftplus" else scores
    if late:
        weights = torch.softmax(scores.gather(-1, chosen), -1)
        intermediate_output = torch.full_like(exact, -math.inf).scatter_(-1, chosen, weights)
    else:
        weights = _weights(judged.gather(-1, chosen), chosen, score_function, expert_bias)
    probs = _spread(weights, chosen, scaling_factor, logits)
    return (
        probs,
        routing_output(chosen, exact, routing_map_format, topk_indices),
        intermediate_output,
    )


def fused_topk_with_score_function_qb_fwd(
    logits: Tensor,
    topk: int,
    scaling_factor: float | None,
    expert_bias: Tensor,
    routing_map_format: int,
    topk_indices: Tensor | None,
    histogram: Tensor,
    bin_bounds: Tensor,
    histogram_mode: int,
    bin_bounds_validated: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Choose top-k experts by sigmoid score, and histogram each score's distance to the cutoff.

    `histogram` is int32 [experts, bins] and is counted into; `bin_bounds` is fp32 [2], the lower
    end of the first bin and the upper end of the last one. The other arguments are those of
    `fused_topk_with_score_function_fwd`; the counts do not depend on the mode.

    Returns:
        The weights, the map or the numbers, the scores, the score of the best expert that was not
        chosen for each token, and the histogram.

    Raises:
        RuntimeError: the bounds are not finite or not in order, or another argument is refused.
    """
    _check(logits, topk + 1, "sigmoid", expert_bias)
    lower, upper = bin_bounds.tolist()
    if not bin_bounds_validated and not -math.inf < lower < upper < math.inf:
        raise RuntimeError(
            expected_but_got(
                "bin_bounds that are finite with lower < upper",
                named("bin_bounds", [lower, upper]),
                "widen the range of the histogram",
            )
        )
    scores = torch.sigmoid(logits.float())
    judged = scores + expert_bias
    ranked = best(judged, topk + 1)
    chosen = ranked[..., :topk]
    cutoff = judged.gather(-1, ranked[..., topk:]).reshape(-1)
    bins = histogram.shape[1]
    per_unit = torch.full_like(bin_bounds[0], bins) / (bin_bounds[1] - bin_bounds[0])
    missed = cutoff.unsqueeze(1) - scores.reshape(len(cutoff), -1) - bin_bounds[0]
    places = (missed * per_unit).floor().clamp(0, bins - 1).long()
    histogram.scatter_add_(1, places.t(), torch.ones_like(places.t(), dtype=histogram.dtype))
    weights = _weights(judged.gather(-1, chosen), chosen, "sigmoid", expert_bias)
    probs = _spread(weights, chosen, scaling_factor, logits)
    routed = routing_output(chosen, scores, routing_map_format, topk_indices)
    return probs, routed, scores, cutoff, histogram


def fused_topk_with_score_function_bwd(
    routing_map: Tensor,
    intermediate_output: Tensor,
    grad_probs: Tensor,
    grad_logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    scaling_factor: float | None,
    score_function: str,
    use_dense_indices: bool,
    routing_map_format: int,
) -> None:
    """Write the gradient of the router's logits to `grad_logits`.

    `routing_map` is the map that the forward returned, or the numbers of experts with
    `use_dense_indices`, and `intermediate_output` is what it kept for the gradient; the other
    arguments are as they were given to it.
    """
    shape = intermediate_output.shape
    if use_dense_indices:
        routed = torch.zeros(shape, dtype=torch.bool).scatter_(-1, routing_map.long(), True)
    else:
        routed = as_mask(routing_map, routing_map_format, shape[-1])
    gradient = grad_probs.float() * (1.0 if scaling_factor is None else scaling_factor)
    gradient = gradient.masked_fill(~routed, 0.0)
    if score_function == "softmax":
        scores = intermediate_output.masked_fill(~routed & (not use_pre_softmax), 0.0)
    else:
        scores = activated(intermediate_output, score_function)
        if topk > 1:
            gradient = of_normalized(gradient, scores.masked_fill(~routed, 0.0), routed)
    grad_logits.copy_(logits_gradient(gradient, scores, intermediate_output, score_function))


def best(scores: Tensor, topk: int) -> Tensor:
    """Return the indices of the `topk` experts with the highest scores, best first."""
    return scores.sort(stable=True, dim=-1, descending=True).indices[..., :topk]


def routing_output(
    chosen: Tensor, like: Tensor, routing_map_format: int, topk_indices: Tensor | None = None
) -> Tensor:
    """Return chosen experts as a byte or bit map, or as indices if `topk_indices` is given."""
    if topk_indices is not None:
        return topk_indices.copy_(chosen)
    mask = torch.zeros(like.shape, dtype=torch.bool).scatter_(-1, chosen, True)
    if routing_map_format == NVTERoutingMapFormat.BYTEMAP:
        return mask
    bits = functional.pad(mask.to(torch.uint8), (0, -mask.shape[-1] % 8))
    bits = bits.reshape(*mask.shape[:-1], -1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def as_mask(routing_map: Tensor, routing_map_format: int, experts: int) -> Tensor:
    """Convert a byte map or a bit map of chosen experts to one boolean per expert."""
    if routing_map_format == NVTERoutingMapFormat.BYTEMAP:
        return routing_map.bool()
    bits = routing_map.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).flatten(-2)[..., :experts].bool()


def activated(intermediate_output: Tensor, score_function: str) -> Tensor:
    """Return expert scores from what forward saved: the scores, or logits for "sqrtsoftplus"."""
    return (
        sqrt_softplus(intermediate_output)
        if score_function == "sqrtsoftplus"
        else intermediate_output
    )


def of_normalized(gradient: Tensor, scores: Tensor, routed: Tensor | None = None) -> Tensor:
    """Return the gradient of expert scores from that of the scores divided by their sum."""
    total = scores.sum(-1, keepdim=True) + EPSILON
    scores_grad = gradient / total - (gradient * scores).sum(-1, keepdim=True) / (total * total)
    return scores_grad if routed is None else scores_grad.masked_fill(~routed, 0.0)


def logits_gradient(
    gradient: Tensor, scores: Tensor, intermediate_output: Tensor, score_function: str
) -> Tensor:
    """Return the gradient of the router's logits from the gradient of the expert scores."""
    if score_function == "softmax":
        return scores * (gradient - (gradient * scores).sum(-1, keepdim=True))
    if score_function == "sigmoid":
        return gradient * scores * (1.0 - scores)
    inner = torch.where(intermediate_output > 20.0, 1.0, torch.sigmoid(intermediate_output))
    return gradient * (inner / (2.0 * scores + EPSILON))


def _weights(
    judged: Tensor, chosen: Tensor, score_function: str, expert_bias: Tensor | None
) -> Tensor:
    """Return the chosen experts' scores without bias, divided by their sum.

    Softmax scores, and the score of a single chosen expert, are not divided.
    """
    # The bias is subtracted again, which does not always give the score that it was added to.
    weights = judged if expert_bias is None else judged - expert_bias[chosen]
    if score_function == "softmax" or chosen.shape[-1] == 1:
        return weights
    return weights / (weights.sum(-1, keepdim=True) + EPSILON)


def _spread(weights: Tensor, chosen: Tensor, factor: float | None, logits: Tensor) -> Tensor:
    scaled = (weights * (1.0 if factor is None else factor)).to(logits.dtype)
    return torch.zeros_like(logits).scatter_(-1, chosen, scaled)


def _of_best_groups(judged: Tensor, topk: int, num_groups: int, group_topk: int) -> Tensor:
    """Return scores with minus infinity for the experts outside the best expert groups."""
    groups = judged.reshape(*judged.shape[:-1], num_groups, -1)
    worth = groups.sort(-1, descending=True).values[..., : topk // group_topk].sum(-1)
    hidden = torch.ones_like(worth, dtype=torch.bool)
    hidden.scatter_(-1, best(worth, group_topk), False)
    return groups.masked_fill(hidden.unsqueeze(-1), -math.inf).flatten(-2)


def _check_groups(experts: int, topk: int, num_groups: int, group_topk: int) -> None:
    """Raise RuntimeError for expert-group sizes that the compiled module refuses.

    Raises:
        RuntimeError: topk is no multiple of group_topk, or groups are uneven or too few.
    """
    size = experts // num_groups if num_groups > 0 else 0
    even = topk % group_topk == 0 and size * num_groups == experts
    if not even or group_topk > num_groups or topk // group_topk > size:
        raise RuntimeError(
            expected_but_got(
                "num_groups groups of equal size, of which group_topk share topk experts evenly,",
                f"topk={topk}, group_topk={group_topk}, num_groups={num_groups}, {experts} experts",
                "choose a group_topk that divides topk, and num_groups that divides the experts",
            )
        )


def _check(logits: Tensor, topk: int, score_function: str, expert_bias: Tensor | None) -> None:
    """Raise RuntimeError for router arguments that Transformer Engine's compiled module refuses.

    Raises:
        RuntimeError: a value that it does not take; the message names it.
    """
    problems = {
        f"a score function in ({', '.join(SCORES)})": (
            score_function not in SCORES and named("score_function", score_function)
        ),
        f"a number of experts up to {logits.shape[-1]}": (
            not 0 < topk <= logits.shape[-1] and named("topk", topk)
        ),
        "scores of sigmoid or sqrtsoftplus beside an expert_bias": (
            expert_bias is not None
            and score_function == "softmax"
            and named("score_function", score_function)
        ),
    }
    for expected, got in problems.items():
        if got:
            raise RuntimeError(
                expected_but_got(expected, got, "change this argument of the router")
            )
