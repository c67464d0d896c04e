"""Each defect of a rollout is red, and its line says which one it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted_rollouts import PLANTED, Planted
from tiny_decoder import sequences

from pytest_precision import noise
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.score_check import score_check


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_named(plant: Callable[[], Planted]) -> None:
    """None passes under the bound of honest ways, and none is told as rounding."""
    planted = plant()
    criteria = Criteria.of({"logprob": noise()})
    declared = SyncTerms(**planted.declared)
    ruling, _ = score_check(
        planted.candidate, planted.reference, sequences(), (), criteria, declared
    )
    assert ruling.outcome in ("fail", "vacuous")
    assert planted.words in "\n".join([ruling.reason, *ruling.details])
