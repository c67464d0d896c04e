"""Draw random sequences and cells, made of the operations that a test's own cells use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_precision.matrix.cell import BUILT_IN_AXES, Cell, axes_of
from pytest_precision.matrix.sequence import OPERATIONS, name_of, operation_names, parse, unparse

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

LONGEST_DRAWN = 8
"""The most operations of a sequence that is drawn."""


def cells(written: Sequence[Cell]) -> SearchStrategy[Cell]:
    """Return a hypothesis strategy for a test's matrix cells with random operation sequences.

    A shorter sequence is the simpler one, and an earlier cell of the test.

    Args:
        written: the cells of the test, at least one.
    """
    from hypothesis import strategies

    written_sequences = [cell.sequence for cell in written]
    drawn = strategies.lists(
        strategies.sampled_from(drawable(written_sequences)), min_size=1, max_size=LONGEST_DRAWN
    )
    sequences = drawn.map(partial(sequence, save_first=any(map(saves_first, written_sequences))))
    return strategies.builds(_with_sequence, strategies.sampled_from(written), sequences)


def drawable(sequences: Iterable[str]) -> list[str]:
    """List the operations (train, save, load) from which random runs are drawn, simplest first.

    Other numbers of ranks, and operations that are `asked_for`, are those of `sequences`.
    """
    words = {word for sequence in sequences for word in parse(sequence)}
    plain = [name for name, row in OPERATIONS.items() if name in words or not row.asked_for]
    return plain + sorted(word for word in words if "@" in word)


def saves_first(sequence: str) -> bool:
    """Return whether a sequence has a save before its first train step."""
    return "save" in takewhile(lambda name: name != "train", operation_names(sequence))


def sequence(operations: Sequence[str], *, save_first: bool = False) -> str:
    """Join operations such as `train` to a run's text, leaving out loads before any save.

    It trains at least once.

    Args:
        operations: entries of `drawable`.
        save_first: whether a save before the first step is kept. torch's `get_state_dict` counts
            such a save as a step, so that each sequence with one would show that and nothing else.
    """
    words: list[str] = []
    for operation in operations if "train" in operations else ["train", *operations]:
        if OPERATIONS[name_of(operation)].needs_save and "save" not in words:
            continue
        if operation != "save" or save_first or "train" in words:
            words.append(operation)
    return unparse(tuple(words))


def marker(cell: Cell) -> str:
    """Return the text of a `precision_matrix` marker that gives a test one set of axis values."""
    written = {name: [value] for name, value in axes_of(cell).items()}
    default = Cell(precision=cell.precision)
    short = {
        name: values
        for name, values in written.items()
        if name not in BUILT_IN_AXES or name == "sequence" or values[0] != getattr(default, name)
    }
    short = {"precision": [cell.precision], **short}
    axes = ", ".join(f"{name}={values!r}" for name, values in short.items())
    return f"@pytest.mark.precision_matrix({axes})"


def _with_sequence(cell: Cell, sequence: str) -> Cell:
    return cell.replace(sequence=sequence)
