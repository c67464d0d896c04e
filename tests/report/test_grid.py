"""Grid: golden texts of matrices of several shapes."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import cell, matrix

from pytest_precision.report.grid import fixed, grid
from pytest_precision.report.status import STATUSES

SEQUENCES = ["train4", "train2-eval-train2", "train2-save-load-train2"]


def text(cells, width=80):
    lines = ["".join(piece for piece, _ in line) for line in grid(cells, width)]
    return "\n".join(line.rstrip() for line in lines)


def golden(expected):
    return "\n".join(
        "  " + line if line else "" for line in dedent(expected).strip("\n").split("\n")
    )


def test_one_cell():
    """A single cell is a single mark."""
    assert text(matrix(precision=["bf16"])).strip() == "."


def test_two_by_two():
    """One axis goes into columns, one into rows."""
    found = matrix(
        lambda axes: "fail" if axes == {"precision": "bf16", "world_size": 2} else "pass",
        precision=["fp32", "bf16"],
        world_size=[1, 2],
    )
    assert text(found) == golden("""
      world_size  1  2
      precision
      fp32        .  .
      bf16        .  F
    """)


def test_long_values_are_rows():
    """An axis of long values alone is a column of labels."""
    assert text(matrix(sequence=SEQUENCES)) == golden("""
      sequence
      train4                   .
      train2-eval-train2       .
      train2-save-load-train2  .
    """)


def test_short_values_are_columns():
    """An axis of short values alone is one row."""
    assert text(matrix(world_size=[1, 2, 3])) == golden("""
      world_size  1  2  3
                  .  .  .
    """)


def test_four_axes_and_cells_that_do_not_exist():
    """Two axes in columns, values stated once, and no mark where there is no cell."""
    found = matrix(
        lambda axes: "fail" if axes["world_size"] == 2 and axes["precision"] == "mxfp8" else "pass",
        lambda axes: axes["precision"] == "mxfp8" or axes["primary_weight"] == "bf16",
        precision=["bf16", "mxfp8"],
        primary_weight=["bf16", "quantized"],
        sequence=SEQUENCES[:2],
        world_size=[1, 2],
    )
    assert text(found) == golden("""
                       sequence  train4  train2-eval-train2
                     world_size  1 2     1 2
      precision  primary_weight
      bf16       bf16            . .     . .
      mxfp8      bf16            . F     . F
                 quantized       . F     . F
    """)


def test_five_axes():
    """Rows are indented by their shared values."""
    found = matrix(
        lambda axes: "vacuous" if axes["glu"] == 32 and axes["world_size"] == 1 else "pass",
        precision=["bf16", "mxfp8"],
        primary_weight=["bf16", "quantized"],
        sequence=SEQUENCES[:2],
        world_size=[1, 2],
        glu=[0, 32],
    )
    assert text(found) == golden("""
                          primary_weight  bf16  quantized
                              world_size  1 2   1 2
      precision  sequence            glu
      bf16       train4              0    . .   . .
                                     32   V .   V .
                 train2-eval-train2  0    . .   . .
                                     32   V .   V .
      mxfp8      train4              0    . .   . .
                                     32   V .   V .
                 train2-eval-train2  0    . .   . .
                                     32   V .   V .
    """)


def test_headings_where_no_table_fits():
    """Values too long for a table are headings above their rows, said once each."""
    found = matrix(
        lambda axes: "skip" if axes["world_size"] == 2 else "pass",
        sequence=[f"{SEQUENCES[2]}-{SEQUENCES[1]}", SEQUENCES[0]],
        precision=["bf16", "mxfp8"],
        world_size=[1, 2],
    )
    assert text(found, 40) == golden("""
         precision  bf16  mxfp8
        world_size  1 2   1 2
      sequence=train2-save-load-train2-train2-eval-train2
                    . s   . s
      sequence=train4
                    . s   . s
    """)


def test_values_are_repeated_below_a_heading():
    """The first row below a heading says all its values, also those of the row above it."""
    long = f"{SEQUENCES[2]}-{SEQUENCES[1]}"
    found = matrix(
        keep=lambda axes: axes["sequence"] == long or axes["primary_weight"] == "fp32",
        sequence=[SEQUENCES[0], long],
        primary_weight=["fp32", "bf16"],
        optimizer=["adam", "adamw"],
        world_size=[1, 2, 3, 4],
    )
    assert text(found, 30) == golden("""
            world_size  1  2  3  4
        primary_weight
      sequence=train4, optimizer=adam
        fp32            .  .  .  .
      sequence=train4, optimizer=adamw
        fp32            .  .  .  .
      sequence=train2-save-load-train2-train2-eval-train2, optimizer=adam
        fp32            .  .  .  .
        bf16            .  .  .  .
      sequence=train2-save-load-train2-train2-eval-train2, optimizer=adamw
        fp32            .  .  .  .
        bf16            .  .  .  .
    """)


def test_ragged():
    """Cells of one test may lack an axis of the others."""
    cells = [cell("pass", {"a": 1}), cell("fail", {"a": 2, "b": "x"}, number=1)]
    assert text(cells) == golden("""
      a  b
      1  -  .
      2  x  F
    """)


def test_repeats_show_the_worst():
    """Two cells at the same place are one mark."""
    cells = [cell("fail", {"a": 1}), cell("pass", {"a": 1}), cell("pass", {"a": 2})]
    assert text(cells) == golden("""
      a  1  2
         F  .
    """)


def test_equal_values_of_other_types_are_two():
    """1, 1.0, True and '1' are four values."""
    found = text(matrix(flag=[1, 1.0, True, "1"])).split()
    assert found == ["flag", "1", "1.0", "True", "1", *"...."]


def test_order_is_that_of_the_matrix():
    """Not that in which xdist's workers ended the cells."""
    cells = matrix(precision=["nvfp4", "bf16", "mxfp8"])
    assert text(cells[::-1]) == text(cells)


def test_axes_of_one_value_are_stated_once():
    """They stand in the title and not in the table."""
    cells = matrix(precision=["bf16"], world_size=[1, 2], glu=[0])
    assert fixed(cells) == "precision=bf16, glu=0"
    assert "bf16" not in text(cells)


@settings(max_examples=60)
@given(st.data())
def test_every_cell_has_its_mark(data):
    """Whatever the shape, there are as many marks as cells, and 80 columns are enough."""
    count = data.draw(st.integers(1, 5))
    lengths = st.lists(st.integers(1, 24), min_size=1, max_size=4)
    axes = {
        f"axis_{i}": [chr(97 + j) * n for j, n in enumerate(data.draw(lengths))]
        for i in range(count)
    }
    cells = matrix(lambda axes: data.draw(st.sampled_from(["error", "fail"])), **axes)
    lines = grid(cells, 80)
    marks = [piece for line in lines for piece, status in line if status]
    assert sorted(marks) == sorted(STATUSES[cell.status].mark for cell in cells)
    tables = [line for line in lines if "=" not in line[0][0]]
    assert max(len("".join(piece for piece, _ in line)) for line in tables) <= 80


LARGE = {
    "precision": ["fp32", "bf16", "fp8_block", "mxfp8", "nvfp4"],
    "primary_weight": ["bf16", "quantized"],
    "grad_accum_fusion": [False, True],
    "sequence": [*SEQUENCES, "train2-skip-train", "train-save-swap-train", "eval-train4"],
    "world_size": [1, 2, 3, 8],
}


@pytest.mark.parametrize(
    ("further", "cells", "width", "lines"),
    [
        ({}, 480, 80, 70),
        ({"seed": [*range(5)]}, 2400, 60, 280),
        ({"seed": [*range(5)]}, 2400, 200, 130),
    ],
)
def test_many_cells(further, cells, width, lines):
    """They are a table that can be read without scrolling much, however wide the terminal is."""
    found = matrix(**LARGE, **further)
    assert len(found) == cells
    table = grid(found, width)
    assert len(table) < lines
    assert max(len("".join(piece for piece, _ in line)) for line in table) <= width
