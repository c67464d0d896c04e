"""Measure how far a model's log-probabilities are apart when it scores the same tokens honestly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.parity.compare.bounds import Close, Noise
from pytest_precision.rollout.casts import Cast, computed_by
from pytest_precision.rollout.inference_weights import logical_name
from pytest_precision.rollout.scorer import Scorer
from pytest_precision.rollout.token_statistics import common_tokens
from pytest_precision.rollout.ways import HONEST

__tracebackhide__ = is_bad_input

FEWEST_WAYS = 2
"""Honest ways below which their spread says nothing."""


class HonestNoise(NamedTuple):
    """The largest difference of honest ways of a model, for each of them.

    Attributes:
        largest: way to the largest absolute difference of a log-probability to that of `alone`.
        safety: times that the largest of them is allowed.
    """

    largest: dict[str, float]
    safety: float

    @property
    def bound(self) -> Close:
        """Return the criterion that allows so much."""
        return Close(rtol=0.0, atol=self.safety * max(self.largest.values()), check_dtype=False)

    @property
    def words(self) -> str:
        """Return the bound in words, and where it comes from."""
        ways = ", ".join(f"{way} {largest:.3g}" for way, largest in self.largest.items())
        return f"{self.bound.atol:.3g}, {self.safety:g} times the largest of honest ways: {ways}"


def honest_noise(
    side: Scorer, sequences: Sequence[Tensor], criterion: Noise, cast: Cast
) -> HonestNoise:
    """Score by the model of a side in several honest ways, with weights after the declared cast.

    Args:
        side: the reference.
        sequences: ids of each.
        criterion: how many ways, and how many times their largest difference is allowed.
        cast: the declared one.

    Raises:
        ValueError: the side shows no model that can be called in two ways.
    """
    if side.model is None:
        advice = "give the reference a model, or write close(rtol=0, atol=)"
        expected = "a reference with a model, of which noise() measures honest ways"
        raise ValueError(expected_but_got(expected, "a function that scores", advice))
    honest = Scorer(model=side.model, around=side.around)
    alone = honest.scores(sequences).logprobs
    if cast is None:
        largest = _measured(honest, sequences, alone, criterion.runs)
    else:
        with cast_weights(side.model, cast):
            alone_cast = honest.scores(sequences).logprobs
            largest = _measured(honest, sequences, alone_cast, criterion.runs - 1)
        largest["cast"] = apart(alone_cast, alone)
    if len(largest) < FEWEST_WAYS:
        expected = "a model that can be called in two ways at least, for noise()"
        raise ValueError(expected_but_got(expected, type(side.model).__name__, "use close()"))
    return HonestNoise(largest, criterion.safety)


def recorded_noise(measured: Mapping[str, float], criterion: Noise) -> HonestNoise:
    """Return the bound of honest ways that were measured where the reference was recorded.

    Raises:
        RecordingError: none was.
    """
    if not measured:
        advice = "record it with show_scores(..., honest_ways=6) or record --forward "
        advice += "--honest-ways, or use close(rtol=0, atol=)"
        expected = "a reference whose honest ways were measured, for noise()"
        raise RecordingError(expected_but_got(expected, "none of them", advice))
    return HonestNoise(dict(measured), criterion.safety)


def _measured(
    side: Scorer, sequences: Sequence[Tensor], alone: dict[int, Tensor], number: int
) -> dict[str, float]:
    """Return how far the first ways in which a model can be called are from `alone`."""
    largest: dict[str, float] = {}
    for way in HONEST:
        if len(largest) == max(FEWEST_WAYS, number):
            break
        # The model may lack the options that a way needs, or adapters.
        with suppress(ValueError):
            largest[way] = apart(side.by(way).scores(sequences).logprobs, alone)
    return largest


def apart(candidate: dict[int, Tensor], reference: dict[int, Tensor]) -> float:
    """Return the largest absolute difference of a log-probability that is finite on both sides."""
    pairs = common_tokens(candidate, reference).values()
    differences = torch.cat([(ours.double() - theirs.double()).abs() for ours, theirs in pairs])
    finite = differences[differences.isfinite()]
    return float(finite.max()) if len(finite) else 0.0


@contextmanager
def cast_weights(model: nn.Module, cast: Cast) -> Iterator[None]:
    """Let a model compute with its weights after the declared cast, in their own dtype."""
    kept_data = {}
    try:
        for name, parameter in model.named_parameters():
            whole = computed_by(cast, logical_name(name), parameter.detach())
            kept_data[parameter] = parameter.data
            if whole.shape == parameter.shape:
                parameter.data = whole.to(parameter.dtype)
        yield
    finally:
        for parameter, data in kept_data.items():
            parameter.data = data
