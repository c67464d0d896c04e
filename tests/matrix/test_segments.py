"""A sequence is divided where other processes go on with it, and nowhere else."""

from __future__ import annotations

import pytest

from pytest_precision import Cell
from pytest_precision.matrix.sequence import Segment, segments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train-save-load-train", [(0, 4, 0, 2, False)]),
        ("train-save-load@2-train", [(0, 4, 0, 2, False)]),
        ("train-save-restart-train", [(0, 2, 0, 2, False), (2, 4, 1, 2, True)]),
        ("train3-save-load@1-eval", [(0, 4, 0, 2, False), (4, 6, 3, 1, False)]),
        (
            "train-save-swap@4-train-save-restart@4",
            [(0, 2, 0, 2, False), (2, 5, 1, 4, False), (5, 6, 2, 4, True)],
        ),
    ],
)
def test_where_a_sequence_is_divided(text: str, expected: list[tuple[int, ...]]) -> None:
    """At a restart, and where the number of ranks changes; each with the steps before it."""
    found = [Segment(number, *fields) for number, fields in enumerate(expected)]  # type: ignore[arg-type]
    assert segments(text, 2) == tuple(found)


def test_all_segments_share_their_microbatches() -> None:
    """So that a step has the same data on whatever ranks it is made."""
    cell = Cell(sequence="train-save-load@4-train-save-load@5-train", world_size=2)
    cells = [cell.of_segment(segment) for segment in cell.segments]
    assert [one.world_size for one in cells] == [2, 4, 5]
    assert {one.microbatches for one in (cell, *cells)} == {60}
    assert {one.fewest_microbatches for one in (cell, *cells)} == {20}
