"""Recordings of two sides that score tell what a test that has both of them tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_rollouts
import pytest
from planted_rollouts import PLANTED, Planted
from tiny_decoder import sequences, tiny

from pytest_precision.__main__ import main
from pytest_precision.rollout import Scorer, show_scores, weight_snapshot
from pytest_precision.rollout.score_recording import recording_scores

LIVE = (
    planted_rollouts.temperature_twice,
    planted_rollouts.encoded_anew,
    planted_rollouts.experts_permuted,
    planted_rollouts.one_bit,
    planted_rollouts.padded_vocabulary,
)
"""What is told by logits, by a side that both have shared, and by bytes."""


def recorded(folder: Path, side: Any, **options: Any) -> str:
    """Record a side, and return the folder."""
    with recording_scores(folder, Path("score.py"), ()):
        show_scores(side, sequences=sequences(), **options)
    return str(folder)


BY_DAY = (
    planted_rollouts.stale_by_digests,
    planted_rollouts.stale_part_of_a_fused_tensor,
    planted_rollouts.merged_on_the_grid,
    planted_rollouts.transposed_expert,
    planted_rollouts.sampled_from_the_top,
    planted_rollouts.another_adapter_computes,
    planted_rollouts.dora_without_its_magnitude,
)
"""One of each way in which a recording knows a cause."""

DEFECTS = [
    pytest.param(plant, id=plant.__name__, marks=[] if plant in BY_DAY else pytest.mark.nightly)
    for plant in PLANTED
]


@pytest.mark.parametrize("plant", DEFECTS)
def test_a_planted_defect_is_named(
    plant: Callable[[], Planted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By digests alone, as long as the trainer has said what an engine might hold."""
    planted = plant()
    engine = recorded(tmp_path / "engine", planted.candidate)
    declared = {"history": {}, **planted.declared}
    trainer = recorded(tmp_path / "trainer", planted.reference, honest_ways=6, **declared)
    assert main(["compare", engine, trainer, "-v", "--criterion", "logprob=noise()"]) == 1
    out = capsys.readouterr().out
    assert plant in LIVE or planted.words in out


def test_a_buffer_that_no_checkpoint_has_need_not_be_sent(tmp_path: Path) -> None:
    """The recording says which these are, as a model does."""
    engine = tiny()
    weights = weight_snapshot(engine)
    del weights["rotary_emb.frequencies"]
    ours = recorded(tmp_path / "engine", Scorer(model=engine, weights=weights))
    assert main(["compare", ours, recorded(tmp_path / "trainer", tiny(), history={})]) == 0
