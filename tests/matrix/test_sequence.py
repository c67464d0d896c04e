"""Sequences: text to operations and back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_precision import SequenceError
from pytest_precision.matrix.sequence import (
    GRAMMAR,
    LOADS,
    OPERATIONS,
    name_of,
    parse,
    steps,
    unparse,
)

WORDS = [*OPERATIONS, *(f"{name}@{ranks}" for name in LOADS for ranks in (1, 2, 40))]


@st.composite
def sequences(draw: st.DrawFn) -> tuple[str, ...]:
    """Operations that make sense: what loads comes after a save, something trains."""
    drawn = draw(st.lists(st.sampled_from(WORDS)))
    drawn.insert(draw(st.integers(0, len(drawn))), "train")
    saved = drawn.index("save") if "save" in drawn else len(drawn)
    return tuple(op for at, op in enumerate(drawn) if name_of(op) not in LOADS or at > saved)


@given(sequences())
def test_round_trip_of_operations(operations: tuple[str, ...]) -> None:
    """What is written is read again as the same operations."""
    assert parse(unparse(operations)) == operations


@given(sequences())
def test_text_is_canonical(operations: tuple[str, ...]) -> None:
    """The text of a sequence does not change by being read and written again."""
    text = unparse(operations)
    assert unparse(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        ("train", ("train",)),
        ("train2-eval-train", ("train", "train", "eval", "train")),
        ("train-save-load-skip2", ("train", "save", "load", "skip", "skip")),
        ("train-save-swap-train", ("train", "save", "swap", "train")),
        ("save-save-train", ("save", "save", "train")),
        ("train-save-restart-train", ("train", "save", "restart", "train")),
        ("train-save-load@4-swap@1", ("train", "save", "load@4", "swap@1")),
    ],
)
def test_meaning(text: str, operations: tuple[str, ...]) -> None:
    """A count repeats its operation."""
    assert parse(text) == operations


def test_shortest_text() -> None:
    """Equal neighbours become a count, where the operation takes one."""
    assert unparse(("train", "train", "save", "save", "eval")) == "train2-save-save-eval"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("train2-eval-train", (1, 2, 0, 3)),
        ("train-save-load-eval-skip2", (1, 0, 2)),
        ("train-skip-train", (1, 2)),
    ],
)
def test_steps(text: str, read: tuple[int, ...]) -> None:
    """A step that was skipped is done again; evaluations read step 0."""
    assert steps(parse(text)) == read


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("train0", 0),
        ("train999999999999", 0),
        ("train-eval100000", 6),
        ("train" + "9" * 5000, 0),
        ("train01", 0),
        ("train\u0663", 0),
        ("train2\n", 0),
        ("Train2", 0),
        ("train2 -eval", 0),
        ("train2--eval", 7),
        ("train2-evil", 7),
        ("train2-eval-", 12),
        ("train-save2", 6),
        ("train-load-save", 6),
        ("train-eval-swap", 11),
        ("train-restart@2", 6),
        ("train-save-load@", 11),
        ("train-save-load@0", 11),
        ("train-save-load@02", 11),
        ("train-save-load@-1", 11),
        ("train-save-load@two", 11),
        ("train-save-load2", 11),
        ("train-save-load@2@2", 11),
        ("train-save-load@4097", 11),
        ("train-save-load@" + "9" * 5000, 11),
        ("train-save@2-load", 6),
        ("train2@2", 0),
        ("train@2", 0),
        ("eval2-save", 0),
    ],
)
def test_refused_with_position(text: str, position: int) -> None:
    """A malformed sequence is refused with where it goes wrong, and with the grammar."""
    with pytest.raises(SequenceError) as refusal:
        parse(text)
    assert f"sequence {text!r}, position {position}: " in str(refusal.value)
    assert GRAMMAR in str(refusal.value)


def test_the_grammar_is_that_of_the_table() -> None:
    """What a refusal tells the reader follows from the rows."""
    assert GRAMMAR == (
        "operations joined by '-': train[N], eval[N], skip[N] with N from 1, save; after a save "
        "load[@W], restart[@W], swap[@W] with W ranks from here on, 1 to 4096; at least one train"
    )


def test_only_text() -> None:
    """A sequence is text; a list of operations is refused by name and type."""
    with pytest.raises(
        SequenceError, match=r"a sequence such as 'train2-eval' but got \['train'\] \(list\)"
    ):
        parse(["train"])  # type: ignore[arg-type]
