"""Write what docs/evidence/catalogue.md says of lines that are planted in a training loop.

`python ci/bench/catalogue.py loops` runs them all, which takes a quarter of an hour, or the defects
that are named.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from stack_lines import HEADING

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "catalogue.md"

sys.path[:0] = [str(ROOT / "fixtures" / "planted"), str(ROOT / "tests")]

from kept_inline import KeptInline  # noqa: E402
from named_lines import (  # noqa: E402
    COMPUTES_IN,
    DEFECTS,
    RIGHT,
    WAYS,
    culprit_in,
    outcome_of,
)

from pytest_precision import Cell, Parity  # noqa: E402
from pytest_precision.options import Settings  # noqa: E402
from pytest_precision.plugin.resources import Resources  # noqa: E402

LOOPS = "## Lines in training loops"

INTRODUCTION = """\
`python ci/bench/catalogue.py loops` plants {number} defects into a training loop of a small decoder
(`fixtures/planted`). The table counts the failures that name the planted line or, if a defect
leaves code out, the reference's line for this code. The rows are the ways to record the loop. The
last column lists failures that name a later line (effect), an earlier line (wrong) or no line
(refused)."""

SETTINGS = Settings(device="cpu", timeout=120, pure=True, ranks="inline")

Column = dict[str, str]
"""Defect to outcome."""


def write_loops(defects: Sequence[str]) -> None:
    """Run defects in all columns, and write the section.

    Args:
        defects: names of them; all if there are none.
    """
    os.chdir(ROOT)
    columns = {
        (way, precision): outcomes_in(way, precision, defects or [*DEFECTS])
        for precision in COMPUTES_IN
        for way in WAYS
    }
    before, _, later = PAGE.read_text().partition(LOOPS if LOOPS in PAGE.read_text() else HEADING)
    rest = later.partition(HEADING)[2] if LOOPS in PAGE.read_text() else later
    PAGE.write_text(f"{before}{section(columns)}\n\n{HEADING}{rest}")


def outcomes_in(way: str, precision: str, defects: Sequence[str]) -> Column:
    """Return what comes of defects in one way in and precision, and print it."""
    resources, kept = Resources(), KeptInline()

    def parity_in(cell: Cell) -> Parity:
        return Parity("test", cell, SETTINGS, resources.ranks(SETTINGS), kept)

    outcomes: Column = {}
    try:
        with TemporaryDirectory() as folder:
            for defect in defects:
                culprit = culprit_in(way, defect, precision, parity_in, Path(folder))
                outcomes[defect] = outcome_of(culprit, defect)
    finally:
        kept.close()
        resources.close()
    print(way, precision, outcomes, flush=True)
    return outcomes


def section(columns: dict[tuple[str, str], Column]) -> str:
    """Return the section of the page."""
    rows = [["recorded as", *COMPUTES_IN, "other failures"], ["---"] * (len(COMPUTES_IN) + 2)]
    for way in WAYS:
        of_way = [columns[way, precision] for precision in COMPUTES_IN]
        counts = [f"{[*o.values()].count(RIGHT)} of {len(o)}" for o in of_way]
        others = {
            f"`{name}` ({outcome})": None
            for outcomes in of_way
            for name, outcome in outcomes.items()
            if outcome != RIGHT
        }
        rows.append([way, *counts, ", ".join(others)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{LOOPS}\n\n{INTRODUCTION.format(number=len(DEFECTS))}\n\n{table}"
