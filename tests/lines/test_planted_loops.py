"""A failure names the line that is planted in a training loop, in each precision and way in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from named_lines import (
    COMPUTES_IN,
    DEFECTS,
    RIGHT,
    WAYS,
    WRONG,
    culprit_in,
    outcome_of,
)

from pytest_precision import Cell, Parity

COLUMNS = {"engine": "fp16", "script": "autocast", "record": "bf16", "command": "fp32"}
"""The column of each way in of which a part is held by day, and all of it by night."""

BY_DAY = [
    (way, precision, defect)
    for number, (way, precision) in enumerate(COLUMNS.items())
    for defect in sorted(DEFECTS)[number :: 2 * len(COLUMNS)]
]
"""Every eighth defect of a column, and no defect twice."""

LEAST = 0.85
"""Share of planted lines that each column names at least."""


@pytest.mark.parametrize(("way", "precision", "defect"), BY_DAY)
def test_the_planted_line_is_named(
    parity_here: Callable[[Cell], Parity], tmp_path: Path, way: str, precision: str, defect: str
) -> None:
    """Each line is one that stacks had wrong; `python ci/bench/catalogue.py loops` counts them."""
    culprit = culprit_in(way, defect, precision, parity_here, tmp_path)
    assert outcome_of(culprit, defect) == RIGHT, culprit


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # 32 cells, each red and explained: 100 s of processor
@pytest.mark.parametrize("precision", COMPUTES_IN)
@pytest.mark.parametrize("way", WAYS)
def test_most_planted_lines_are_named(
    parity_here: Callable[[Cell], Parity], tmp_path: Path, way: str, precision: str
) -> None:
    """The same lines in each column: no precision and no way in names fewer."""
    outcomes = {
        defect: outcome_of(culprit_in(way, defect, precision, parity_here, tmp_path), defect)
        for defect in DEFECTS
    }
    named = sum(outcome == RIGHT for outcome in outcomes.values())
    assert named >= LEAST * len(outcomes), outcomes
    assert WRONG not in outcomes.values(), outcomes
