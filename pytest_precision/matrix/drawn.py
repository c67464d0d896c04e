"""Drawn: sequences and cells that nobody has written, of the words that a test's own cells use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_precision.matrix.cell import BUILT_IN_AXES, Cell
from pytest_precision.matrix.sequence import OPERATIONS, name_of, parse, unparse

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LONGEST = 8
"""The most operations of a sequence that is drawn."""

ASKED_FOR = ("swap",)
"""Operations that a layout need not know, which are drawn where the test has them itself."""


def cells(written: Sequence[Cell]) -> SearchStrategy[Cell]:
    """Return the cells of a test with sequences that are drawn instead of its own.

    A shorter sequence is the simpler one, and an earlier cell of the test.

    Args:
        written: the cells of the test, at least one.
    """
    from hypothesis import strategies

    operations = strategies.lists(
        strategies.sampled_from(words(cell.sequence for cell in written)),
        min_size=1,
        max_size=LONGEST,
    )
    return strategies.builds(_with_operations, strategies.sampled_from(written), operations)


def words(sequences: Iterable[str]) -> list[str]:
    """List the operations that can be drawn, the simplest first.

    Other numbers of ranks, and operations of `ASKED_FOR`, are those of `sequences`.
    """
    own = {word for sequence in sequences for word in parse(sequence)}
    plain = [name for name in OPERATIONS if name not in ASKED_FOR or name in own]
    return plain + sorted(word for word in own if "@" in word)


def sequence(operations: Sequence[str]) -> str:
    """Return the sequence of these operations without those that nothing was saved for.

    It trains at least once.
    """
    kept: list[str] = []
    for operation in operations:
        if not OPERATIONS[name_of(operation)].needs_save or "save" in kept:
            kept.append(operation)
    return unparse(tuple(kept if "train" in kept else ["train", *kept]))


def marker(cell: Cell) -> str:
    """Return the marker that makes this cell, to paste above a test."""
    written = {name: [value] for name, value in cell.axes.items()}
    default = Cell(precision=cell.precision)
    short = {
        name: values
        for name, values in written.items()
        if name not in BUILT_IN_AXES or name == "sequence" or values[0] != getattr(default, name)
    }
    short = {"precision": [cell.precision], **short}
    axes = ", ".join(f"{name}={values!r}" for name, values in short.items())
    return f"@pytest.mark.precision_matrix({axes})"


def _with_operations(cell: Cell, operations: Sequence[str]) -> Cell:
    return cell.replace(sequence=sequence(operations))
