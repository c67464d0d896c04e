"""What docs/reference/catalogue.md says of defects and variations is what comes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import defects  # noqa: F401
import pytest
import variations  # noqa: F401
from catalogue import DEFECTS, VARIATIONS, Defect, Variation
from examined import OTHER_SEEDS, defect_found, variation_found

from pytest_precision import Cell, Parity

ParityIn = Callable[[Cell], Parity]


@pytest.fixture
def parity_with_lines(parity_by: ParityIn) -> ParityIn:
    """The fixture `parity` of a test in the given cell, whose failures name lines."""
    return parity_by


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "catalogue.md"
"""To write it anew: `python ci/bench/catalogue.py`."""


def row(name: str) -> list[str]:
    """Return the cells of a row of the page."""
    found = re.search(rf"^\| `{name}` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert found is not None, f"{PAGE.name} has no {name}"
    return [part.strip() for part in found[0].split("|")[1:-1]]


@pytest.mark.parametrize("entry", DEFECTS, ids=lambda entry: entry.name)
def test_a_defect_of_a_real_stack_is_caught(parity_with_lines: ParityIn, entry: Defect) -> None:
    """Where it starts; and whatever else the page says of it."""
    found = defect_found(entry, parity_with_lines)
    said = row(entry.name)[4:]
    assert (found.outcome, found.where) == ("fail", entry.where), found.first_line
    assert found.tensor.startswith(entry.tensor)
    assert said[:2] == ["fail", "yes"]
    assert said[2] == {True: "yes", False: "wrongly", None: "no"}[found.named], found.first_line
    assert (found.error, said[3]) == (entry.error, entry.error)
    if said[4] == "yes":
        assert found.at(entry.planted), found.line
    if said[5] == "yes":
        assert found.made == entry.made
    assert said[6:-2] == ["seen" if seen else "" for seen in found.losses]
    if said[-2] != "not caught":  # better than the page is well
        assert found.shared == said[-2]
    assert (found.tolerated == "pass") == (said[-1] == "passes")


@pytest.mark.parametrize("entry", VARIATIONS, ids=lambda entry: entry.name)
def test_a_legitimate_variation_is_left_alone(parity_in: ParityIn, entry: Variation) -> None:
    """It is the same bit for bit, or within the bounds that its failure proposes.

    Where the page says that bits differ, a CPU that multiplies otherwise may have the same.
    """
    # On the data that they were made from, bounds are tried before they are proposed.
    found = variation_found(entry, parity_in, seeds=OTHER_SEEDS[:1])
    assert found.bitwise or row(entry.name)[3] == "no"
    assert not found.flagged
    assert not found.flagged_later or row(entry.name)[5] == "yes", found.flagged_later
    assert found.named is not False


def test_the_page_has_every_entry() -> None:
    """And no other."""
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert named == [entry.name for entry in (*DEFECTS, *VARIATIONS)]


def test_three_defects_at_most_pass_within_the_bounds_that_are_proposed() -> None:
    """Three quarters of the failures have a word for the kind of error, and none a wrong one."""
    rows = [row(entry.name) for entry in DEFECTS]
    assert sum(cells[-1] == "passes" for cells in rows) <= 3
    assert 4 * sum(bool(cells[7]) for cells in rows) >= 3 * len(rows)
    assert not any(cells[6] == "wrongly" for cells in rows)
