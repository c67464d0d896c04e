"""No honest difference of a rollout is red."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from honest_rollouts import HONEST, Honest
from tiny_decoder import sequences

from pytest_precision import noise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.score_check import score_check


@pytest.mark.parametrize("honest", HONEST)
def test_an_honest_difference_passes(honest: Callable[[], Honest]) -> None:
    """Its weights are the same bits after the cast, and its scores are within the bound."""
    side = honest()
    declared = SyncTerms(**dict(side.declared))
    criteria = Criteria.of({"logprob": noise()})
    ruling, figures = score_check(
        side.candidate, side.reference, sequences(), (), criteria, declared
    )
    assert (ruling.outcome, ruling.reason) == ("pass", "")
    assert ruling.in_part
    assert figures["rollout"]["weights"]["differing"] == []
