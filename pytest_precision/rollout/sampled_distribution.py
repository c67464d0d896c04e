"""Recognize log-probabilities of another distribution: of another temperature, or truncated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pytest_precision.rollout.scorer import Scorer, device_of
from pytest_precision.rollout.ways import Caller, each_alone

TEMPERATURES = (0.1, 4.0)
"""The range in which a temperature is looked for."""

GRID, ROUNDS = 40, 40
"""Temperatures that are tried first, and how often the best one is made finer."""

EXPLAINED = 0.01
"""How far log-probabilities may be off in the mean, as a share, for a temperature to explain them.
"""

APART = 0.02
"""How far two temperatures must be apart, as a share, to be two."""

CLOSE = 1e-3
"""Difference of log-probabilities that rounding may make."""

MOSTLY = 0.9
"""Share of the tokens that a truncated distribution gives more."""


def distribution_words(
    reference: Scorer | None, sequences: list[Tensor], pairs: Mapping[int, tuple[Tensor, Tensor]]
) -> str:
    """Return in words which distribution the candidate's scores are of; empty if not another one.

    Args:
        reference: the side whose model gives the full distribution; None if it was recorded.
        sequences: ids of each.
        pairs: log-probabilities of both sides, by sequence.
    """
    words = _tempered(reference, sequences, pairs)
    if words:
        return words
    differences = torch.cat([(ours - theirs).double() for ours, theirs in pairs.values()])
    differences = differences[differences.isfinite()]
    more = differences > CLOSE
    if len(differences) and float(more.double().mean()) >= MOSTLY and differences.min() > -CLOSE:
        return (
            "the candidate's log-probabilities are all larger, as those of a truncated "
            f"distribution (top-k, top-p) are, by {float(differences.mean()):.3g} in the mean: "
            "compare scores of the full distribution"
        )
    return ""


def _tempered(
    reference: Scorer | None, sequences: list[Tensor], pairs: Mapping[int, tuple[Tensor, Tensor]]
) -> str:
    """Return the temperatures of both sides in words, if they explain their scores; else empty.

    The reference's model is called once more for its logits, of which each side shows one a token.
    """
    if reference is None or reference.model is None:
        return ""
    number, sides = max(pairs.items(), key=lambda pair: len(pair[1][0]))
    ids = sequences[number].to(device_of(reference.model))
    length = len(sides[0])
    with torch.no_grad(), reference.around():
        logits = each_alone(Caller(reference.model), [ids])[0][:-1].double().cpu()[-length:]
    temperatures = [fitted_temperature(logits, ids.cpu()[-length:], side) for side in sides]
    ours, theirs = temperatures
    if ours is None or theirs is None or abs(ours - theirs) < APART * theirs:
        return ""
    return (
        f"the candidate's log-probabilities are of temperature {ours:.3g}, the reference's of "
        f"{theirs:.3g}: it is applied on one side, or twice"
    )


def fitted_temperature(logits: Tensor, ids: Tensor, scores: Tensor) -> float | None:
    """Return the temperature that makes log-probabilities of logits; None if none does.

    Args:
        logits: of each token, before any temperature.
        ids: of each token.
        scores: its log-probability.
    """
    places = ids.unsqueeze(-1)

    def error(temperature: float) -> float:
        scored = torch.log_softmax(logits / temperature, -1).gather(-1, places).squeeze(-1)
        return float((scored - scores.double()).abs().mean())

    grid = torch.linspace(*TEMPERATURES, GRID, dtype=torch.float64).tolist()
    best = min(range(GRID), key=lambda place: error(grid[place]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    for _ in range(ROUNDS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if error(left) < error(right) else (left, high)
    temperature = (low + high) / 2
    return temperature if error(temperature) < EXPLAINED * float(scores.abs().mean()) else None
