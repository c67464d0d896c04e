"""Loops over torch's pipelines are recorded, and the line is named in the stage that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from followed_files import named, naming
from marked_lines import marked

from pytest_precision import Cell, Parity, ParityError, unchecked

ParityIn = Callable[[Cell], Parity]

LOOP = Path(__file__).with_name("pipelined_loop.py")
LOSS = {"loss": unchecked(reason="the schedules call torch.autograd.backward, which shows none")}
LARGE = 6000
"""Width of a first stage of which digests are kept, while the second one keeps values."""

CELL = Cell(sequence="train2", world_size=2)


# Where one stage keeps digests, the other one keeps values.
@pytest.mark.parametrize("width", [pytest.param(32, marks=pytest.mark.nightly), LARGE])
def test_stages_of_a_pipeline_are_recorded(parity_in: ParityIn, width: int) -> None:
    """In their forwards the recorder asks no other rank, since that one waits for them."""
    ours, theirs = (naming(CELL, LOOP, one, "right", width) for one in ("1f1b", "gpipe"))
    verdict = parity_in(ours).check(named, named, criterion=LOSS, reference_cell=theirs)
    assert verdict.observations > 50


@pytest.mark.parametrize(
    ("schedule", "wrong", "rank", "width"),
    [
        # Of both schedules and both stages, one pair is enough.
        pytest.param("1f1b", "first", 0, 32, marks=pytest.mark.nightly),
        pytest.param("gpipe", "first", 0, 32, marks=pytest.mark.nightly),
        pytest.param("1f1b", "second", 1, 32, marks=pytest.mark.nightly),
        ("gpipe", "second", 1, LARGE),
    ],
)
def test_the_line_of_a_wrong_stage_is_named(
    parity_in: ParityIn, schedule: str, wrong: str, rank: int, width: int
) -> None:
    """Although the ranks send each other what they compute while they are logged."""
    ours, theirs = (naming(CELL, LOOP, schedule, how, width) for how in (wrong, "right"))
    with pytest.raises(ParityError) as failure:
        parity_in(ours).check(named, named, criterion=LOSS, reference_cell=theirs)
    found = failure.value.verdict.culprit
    assert found is not None, failure.value.verdict.details
    assert (found.line, found.kind, found.rank) == (marked(LOOP, wrong), "extra", rank), found.text
