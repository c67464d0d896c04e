"""Drawn cells: sequences of the words that a test's own cells use."""

from __future__ import annotations

import ast

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from pytest_precision import Cell
from pytest_precision.matrix import drawn
from pytest_precision.matrix.sequence import OPERATIONS, parse

WORDS = drawn.drawable(["train-save-swap@2-train"])

MANY = 200
"""Cells none of which may save first; where a test does, about one in seven has it."""


@given(st.lists(st.sampled_from(WORDS), max_size=drawn.LONGEST_DRAWN))
def test_every_list_of_operations_is_a_sequence(operations: list[str]) -> None:
    """It trains, loads nothing that was not saved, and saves nothing that was not trained."""
    sequence = drawn.sequence(operations)
    kept = parse(sequence)
    assert "train" in kept
    assert len(kept) <= len(operations) + 1
    assert not drawn.saves_first(sequence)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "swap"])
def test_every_operation_is_drawn(name: str) -> None:
    """Whatever the test itself does."""
    found = find(drawn.cells([Cell()]), lambda cell: name in cell.operations)
    assert name in found.operations


def test_what_a_layout_need_not_know_is_drawn_where_the_test_has_it() -> None:
    """Other layouts' checkpoints, and other numbers of ranks."""
    assert drawn.drawable(["train"]) == [name for name in OPERATIONS if name != "swap"]
    assert drawn.drawable(["train-save-swap"]) == [*OPERATIONS]
    assert drawn.drawable(["train-save-load@2"])[-1] == "load@2"


@pytest.mark.parametrize("own", ["save-train", "train-save-load-train"])
def test_a_save_before_the_first_step_is_drawn_where_the_test_has_one(own: str) -> None:
    """A save that torch counts as a step would hide whatever else there is to find."""
    early = drawn.cells([Cell(sequence=own)]).map(lambda cell: drawn.saves_first(cell.sequence))
    if own == "save-train":
        assert find(early, bool)
    else:
        with pytest.raises(NoSuchExample):
            find(early, bool, settings=settings(max_examples=MANY))


def test_the_simplest_cell_is_the_first_with_the_shortest_sequence() -> None:
    """That is what a failure shrinks to."""
    written = [Cell(world_size=size, sequence="train4") for size in (2, 1)]
    found = find(drawn.cells(written), lambda cell: "eval" in cell.operations)
    assert (found.world_size, found.sequence) == (2, "train-eval")


@pytest.mark.parametrize(
    "cell",
    [
        Cell(),
        Cell(precision="bf16", primary_weight="fp32", sequence="train-eval", world_size=2),
        Cell(precision="mxfp8", grad_accum_fusion=True, extra=(("width", 3), ("head", None))),
    ],
)
def test_a_marker_makes_its_cell(cell: Cell) -> None:
    """What is left out has the value that it has in the cell."""
    call = ast.parse(drawn.marker(cell).removeprefix("@")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    axes = {k.arg: ast.literal_eval(k.value)[0] for k in call.value.keywords if k.arg}
    own = {name: axes.pop(name) for name in dict(cell.extra)}
    assert Cell(**axes, extra=tuple(own.items())) == cell
