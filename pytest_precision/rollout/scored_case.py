"""What two sides have shown, and the terms by which it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from pytest_precision.parity.compare.bounds import Noise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.compare.tensors import Difference, compare
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.honest_noise import HonestNoise, honest_noise, recorded_noise
from pytest_precision.rollout.inference_weights import WeightTable
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.rollout.token_statistics import common_tokens
from pytest_precision.rollout.weight_sync import WeightSync, sync_of

LOGPROB = "logprob"


class Shown(NamedTuple):
    """What one side has shown.

    Attributes:
        scores: of each way in which it has scored.
        table: what it holds; None if it shows no weights.
    """

    scores: Mapping[str, Scores]
    table: WeightTable | None


class BeyondBound(NamedTuple):
    """The first log-probability that differs by more than its criterion allows.

    Attributes:
        sequence, position: of the token.
        ours, theirs: its log-probabilities.
        difference: of all tokens of the sequence.
    """

    sequence: int
    position: int
    ours: Tensor
    theirs: Tensor
    difference: Difference


class PartedTokens(NamedTuple):
    """Where a sequence of two recorded sides goes on with other tokens.

    Attributes:
        sequence, position: of the first token that is another one.
        ours, theirs: its ids.
    """

    sequence: int
    position: int
    ours: int
    theirs: int

    @property
    def words(self) -> str:
        """Return it as a line."""
        return (
            f"position {self.position} of sequence {self.sequence} is token {self.ours} in the "
            f"candidate, {self.theirs} in the reference"
        )


@dataclass(frozen=True)
class ScoredCase:
    """Two sides that have scored the same sequences.

    Attributes:
        candidate, reference: what they have shown; the reference has one way.
        sequences: ids of each.
        criteria: of the test.
        declared: cast, names and history of the weights.
        live: both sides, to ask them for more; None for those that were recorded elsewhere.
        measured: of a recorded reference, honest way to how far it is off.
        planted: of a recorded reference, the name of a weight and the scores with it planted.
        unscored: why no log-probabilities are compared; empty if they are.
        parted: where sequences of recorded forwards go on with other tokens, up to which they are
            compared.
    """

    candidate: Shown
    reference: Shown
    sequences: list[Tensor]
    criteria: Criteria
    declared: SyncTerms
    live: tuple[Scorer, Scorer] | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    planted: tuple[str, Mapping[int, Tensor]] | None = None
    unscored: str = ""
    parted: tuple[PartedTokens, ...] = ()

    @property
    def theirs(self) -> Scores:
        """Return what the reference has scored."""
        return next(iter(self.reference.scores.values()))

    def pairs(self, way: str) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the log-probabilities that both sides have, by sequence."""
        return common_tokens(self.candidate.scores[way].logprobs, self.theirs.logprobs)

    @cached_property
    def sync(self) -> WeightSync | None:
        """The comparison of weights; None where a side shows none."""
        if self.candidate.table is None or self.reference.table is None:
            return None
        return sync_of(self.candidate.table, self.reference.table, self.declared, self.criteria)

    @cached_property
    def noise(self) -> HonestNoise | None:
        """The measured bound; None where no criterion of log-probabilities needs one."""
        rules = self.criteria.of_kind(LOGPROB)
        noisy = [rule.criterion for rule in rules if isinstance(rule.criterion, Noise)]
        if not noisy:
            return None
        if self.live is None:
            return recorded_noise(self.measured, noisy[0])
        return honest_noise(self.live[1], self.sequences, noisy[0], self.declared.cast)

    def criterion(self, sequence: int) -> Criterion:
        """Return the criterion of a sequence's log-probabilities, with its measured bound."""
        criterion = self.criteria.of_tensor(LOGPROB, f"sequence {sequence}").criterion
        if isinstance(criterion, Noise) and self.noise is not None:
            return self.noise.bound
        return criterion

    def beyond(self, pairs: Mapping[int, tuple[Tensor, Tensor]]) -> BeyondBound | None:
        """Return the first token, of the first sequence, that is beyond its bound; None if none."""
        for sequence, (ours, theirs) in pairs.items():
            criterion = self.criterion(sequence)
            if criterion.left_out:
                continue
            difference = compare(ours, theirs, criterion)
            if difference is None:
                continue
            first = difference.statistics and difference.statistics.first
            index = first[0] if first else 0
            position = len(self.sequences[sequence]) - len(ours) + index
            return BeyondBound(sequence, position, ours[index], theirs[index], difference)
        return None
