"""Figures of two sides' log-probabilities, under the names that training stacks give them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

GROUPS = (
    ("rollout_probs_diff_max", "rollout_probs_diff_mean", "rollout_probs_diff_std"),
    (
        "train_rollout_logprob_abs_diff",
        "train_rollout_logprob_abs_diff_p99",
        "train_rollout_logprob_abs_diff_max",
    ),
    ("rollout_actor_probs_pearson_corr", "k3_kl", "gen_kl_error", "token_mult_prob_error"),
)
"""The names of all figures, those of a line together."""


def figure_lines(figures: Mapping[str, float]) -> list[str]:
    """Return the figures as lines of text."""
    groups = [[name for name in group if name in figures] for group in GROUPS]
    return [", ".join(f"{name} {figures[name]:.4g}" for name in group) for group in groups if group]


def common_tokens(
    candidate: Mapping[int, Tensor], reference: Mapping[int, Tensor]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the log-probabilities of the tokens that both sides score, by sequence.

    Both end with the last token of the sequence.
    """
    pairs = {}
    for number in sorted(candidate.keys() & reference.keys()):
        ours, theirs = candidate[number], reference[number]
        length = min(len(ours), len(theirs))
        if length:
            pairs[number] = (ours[-length:], theirs[-length:])
    return pairs


def statistics_of(pairs: Mapping[int, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return the figures of all tokens; those that are not finite on both sides are left out."""
    if not pairs:
        return {}
    ours, theirs = (torch.cat([pair[side].double() for pair in pairs.values()]) for side in (0, 1))
    finite = ours.isfinite() & theirs.isfinite()
    ours, theirs = ours[finite], theirs[finite]
    if not len(ours):
        return {}
    difference = (ours - theirs).abs()
    probabilities = ours.exp(), theirs.exp()
    apart = (probabilities[0] - probabilities[1]).abs()
    ratio = theirs - ours
    k3 = (ratio.exp() - 1 - ratio).mean()
    figures = {
        "rollout_probs_diff_max": apart.max(),
        "rollout_probs_diff_mean": apart.mean(),
        "rollout_probs_diff_std": apart.std(correction=0),
        "rollout_actor_probs_pearson_corr": _correlation(*probabilities),
        "train_rollout_logprob_abs_diff": difference.mean(),
        "train_rollout_logprob_abs_diff_p99": difference.quantile(0.99),
        "train_rollout_logprob_abs_diff_max": difference.max(),
        "k3_kl": k3,
        "gen_kl_error": k3,
        "token_mult_prob_error": difference.exp().mean(),
    }
    return {name: float(figure) for name, figure in figures.items()}


def _correlation(ours: Tensor, theirs: Tensor) -> Tensor:
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    length = ours.norm() * theirs.norm()
    return (ours * theirs).sum() / length if length else torch.tensor(1.0)
