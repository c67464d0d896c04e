"""One side of a comparison of log-probabilities: how it scores, and what it shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.rollout.inference_weights import Weights, WeightTable
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.token_rows import TokenRows
from pytest_precision.rollout.ways import Caller, logprobs_of, way_of

__tracebackhide__ = is_bad_input


class TokenScores(NamedTuple):
    """What a side's own function may give back: log-probabilities, and the ids that it has scored.

    Attributes:
        logprobs: of each sequence, of its last tokens.
        ids: of each sequence, as the engine has them; None if it cannot say.
    """

    logprobs: Sequence[Any] | Mapping[int, Any]
    ids: Sequence[Any] | None = None


class Scores(NamedTuple):
    """All that one side has shown in one pass over the sequences.

    Attributes:
        logprobs: sequence to the log-probabilities of its last tokens.
        rows: the tokens that its forwards have had.
        outputs: of its modules.
        ids: that the side says it has scored, by sequence; None if it says none.
    """

    logprobs: dict[int, Tensor]
    rows: TokenRows
    outputs: ModuleOutputs
    ids: list[list[int]] | None = None


@dataclass(frozen=True, eq=False)
class Scorer:
    """A side of `parity.score`.

    Attributes:
        score: `(sequences)` to the log-probabilities of each, as tensors or lists: of all tokens
            but the first, or, where they are fewer, of the last tokens; or `TokenScores`. One with
            a second argument is given a function to call before each forward with the token
            `(sequence, position)` of each row, as a list of lists, None for padding: of what is not
            called with `input_ids`. Without it, the model is called by `way`.
        model: whose modules and weights are shown.
        way: how the model is called; see docs/how-to/trainer-and-rollout.md.
        weights: what the side holds, where this is not what the model shows: by name, tensors or
            digests of `weight_snapshot(model, digests=True)`, or a function that gives them back.
        around: makes the context in which the side scores, such as one of autocast.
    """

    score: Callable[..., Any] | None = None
    model: nn.Module | None = None
    way: str = "alone"
    weights: Weights | Callable[[], Weights] | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    @classmethod
    def of(cls, name: str, side: object) -> Scorer:
        """Return a side as a Scorer: a model, or a function, may stand for its own.

        Raises:
            TypeError: it is none of them.
            ValueError: there is no such way, or nothing to score by.
        """
        if isinstance(side, nn.Module):
            side = cls(model=side)
        elif callable(side) and not isinstance(side, cls):
            side = cls(score=side)
        if not isinstance(side, cls):
            advice = "give a Scorer, a model, or a function of the sequences"
            raise TypeError(expected_but_got(f"{name} to score tokens", named(name, side), advice))
        if side.score is None and side.model is None:
            raise ValueError(expected_but_got(f"{name} with score= or model=", "neither of them"))
        way_of(side.way)
        return side

    def by(self, way: str) -> Scorer:
        """Return a side that calls the model by another way.

        Raises:
            ValueError: it scores by a function of its own.
        """
        if self.score is not None:
            advice = "give the model alone, or leave `ways` out"
            raise ValueError(expected_but_got("ways of a model", "a function that scores", advice))
        way_of(way)
        return replace(self, way=way)

    @property
    def table(self) -> WeightTable | None:
        """Return what the side holds; None if it shows no weights."""
        weights = self.weights() if callable(self.weights) else self.weights
        if weights is not None:
            return WeightTable(dict(weights))
        return None if self.model is None else WeightTable.of(self.model)

    def same(self, other: Scorer) -> bool:
        """Return whether another side is this one, so that both always agree."""
        ways = self.score is None and self.way != other.way
        computes = self.score is other.score and self.around is other.around and not ways
        return computes and self.model is other.model

    def scores(self, sequences: Sequence[Tensor], values_of: str = "") -> Scores:
        """Score the sequences once.

        Args:
            sequences: ids of each.
            values_of: the module whose values are kept, and not only digests.

        Raises:
            ValueError: the side gives back something else than log-probabilities.
        """
        rows = TokenRows(sequences)
        outputs = ModuleOutputs(rows, values_of)
        watching = nullcontext() if self.model is None else outputs.watching(self.model)
        with torch.no_grad(), watching, self.around():
            answer = self._answer(sequences, rows)
        scores = answer if isinstance(answer, TokenScores) else TokenScores(answer)
        ids = None
        if scores.ids is not None:
            ids = [torch.as_tensor(row).flatten().tolist() for row in scores.ids]
        return Scores(by_sequence(scores.logprobs, sequences), rows, outputs, ids)

    def _answer(self, sequences: Sequence[Tensor], rows: TokenRows) -> Any:
        if self.score is not None:
            takes_rows = len(inspect.signature(self.score).parameters) > 1
            return self.score(sequences, rows.say) if takes_rows else self.score(sequences)
        assert self.model is not None
        placed = [ids.to(device_of(self.model)) for ids in sequences]
        logits = way_of(self.way)(Caller(self.model), placed)
        return [logprobs_of(rows, ids) for rows, ids in zip(logits, placed, strict=True)]


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def by_sequence(logprobs: Any, sequences: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return log-probabilities by sequence, after a look at their numbers.

    Raises:
        ValueError: they are not those of the sequences.
    """
    pairs = logprobs.items() if isinstance(logprobs, Mapping) else enumerate(logprobs)
    scored = {}
    for number, row in pairs:
        tensor = torch.as_tensor(row).detach().flatten().cpu()
        tensor = tensor if tensor.is_floating_point() else tensor.double()
        if not isinstance(number, int) or not 0 <= number < len(sequences):
            expected = f"log-probabilities of {len(sequences)} sequences"
            raise ValueError(expected_but_got(expected, f"some of sequence {number}"))
        if tensor.numel() > len(sequences[number]) - 1:
            most = len(sequences[number]) - 1
            expected = f"at most {most} log-probabilities of sequence {number}, one a token but the"
            raise ValueError(expected_but_got(f"{expected} first,", tensor.numel()))
        scored[number] = tensor
    return scored
