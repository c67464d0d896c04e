"""A failure names the line that is planted in a training loop, in each precision and way in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest

sys.path.append(str(Path(__file__).parents[2] / "fixtures" / "planted"))

from named_lines import (
    COMPUTES_IN,
    DEFECTS,
    EFFECT,
    RIGHT,
    WAYS,
    culprit_in,
    outcome_of,
)

from pytest_precision import Cell, Parity

SHOWN_BY_EFFECT = {"residual", "microbatch", "lost"}
"""Defects that leave a tensor out of the backward or of a list, by a line without an operation."""

BY_DAY = {
    ("engine", "bf16", "zero"),
    ("script", "autocast", "stale"),
    ("script", "fp32", "early"),
    ("record", "fp32", "schedule"),
    ("command", "fp32", "clip"),
}

CASES = [
    pytest.param(*case, marks=() if case in BY_DAY else pytest.mark.nightly)
    for case in (
        (way, where, defect) for way in WAYS for where in COMPUTES_IN for defect in DEFECTS
    )
]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the right loop, made once for all defects."""
    return tmp_path_factory.mktemp("recordings")


@pytest.mark.parametrize(("way", "precision", "defect"), CASES)
def test_the_planted_line_is_named(
    parity_here: Callable[[Cell], Parity],
    recordings: Path,
    way: str,
    precision: str,
    defect: str,
) -> None:
    """Each line is one that stacks had wrong; `python ci/bench/catalogue.py loops` counts them."""
    culprit = culprit_in(way, defect, precision, parity_here, recordings)
    text = "" if culprit is None else culprit.text
    assert outcome_of(culprit, defect) in (RIGHT, EFFECT * (defect in SHOWN_BY_EFFECT)), text
