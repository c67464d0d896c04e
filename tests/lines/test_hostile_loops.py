"""Whatever a loop does, the line is named or the verdict stands without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import in_this_process  # noqa: F401
import pytest
from followed_files import followed
from marked_lines import marked

from pytest_precision import Cell, Parity, ParityError
from pytest_precision.parity.culprit import Culprit

ParityIn = Callable[[Cell], Parity]

LOOP = Path(__file__).with_name("hostile.py")
MARKED, WAY = marked(LOOP, "wrong"), marked(LOOP, "way")


def culprit(parity: Parity, file: Path, trick: str) -> Culprit:
    with pytest.raises(ParityError) as failure:
        parity.check(followed(file, trick, "wrong"), followed(LOOP, trick, "right"))
    verdict = failure.value.verdict
    assert verdict.divergence is not None
    assert verdict.divergence.step == 2
    assert verdict.culprit is not None, verdict.details
    return verdict.culprit


def by_day_and_night(by_day: Sequence[str], by_night: Sequence[str]) -> list[Any]:
    """Return parameters, those of which alone run by day that leave out the most of a stack."""
    return [*by_day, *(pytest.param(one, marks=pytest.mark.nightly) for one in by_night)]


@pytest.mark.parametrize(
    "trick", by_day_and_night(["none", "checkpoint", "thread"], ["mode", "func", "autocast"])
)
def test_the_line_is_named(parity_here: ParityIn, trick: str) -> None:
    """Recomputation, modes, transforms, autocast and threads change nothing about it."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, trick)
    assert (found.file, found.line, found.kind) == (
        LOOP.relative_to(Path.cwd()).as_posix(),
        MARKED,
        "extra",
    ), found.text


@pytest.mark.parametrize("around", by_day_and_night(["checkpoint", "grad"], ["none", "autocast"]))
def test_a_line_inside_is_named(parity_here: ParityIn, around: str) -> None:
    """Of the forward that is recomputed, differentiated by a transform, or cast by itself."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, f"inside {around}")
    assert (Path(found.file or "").name, found.line, found.kind) == (
        LOOP.name,
        marked(LOOP, "inside"),
        "extra",
    ), found.text
    assert found.operation == "aten.mul.Tensor"


def test_an_optimizer_of_lists_is_followed_tensor_by_tensor(parity_here: ParityIn) -> None:
    """Its constant is compared with the reference's."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, "lists")
    assert (found.line, found.kind) == (marked(LOOP, "lists"), "constant"), found.text
    assert "the reference added -0.01 here, the candidate -0.02" in found.text


def test_a_wrapper_is_followed_into_what_it_holds(parity_here: ParityIn) -> None:
    """The operation inside is the one that is wrong."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, "wrapper")
    assert (found.line, found.operation) == (marked(LOOP, "wrapper"), "aten.mul.Tensor"), found.text


def test_a_source_file_may_be_gone(parity_here: ParityIn) -> None:
    """Its name and its line are known, and no text."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, "deleted")
    assert (Path(found.file or "").name, found.line, found.source) == ("scaling.py", 2, ())


def test_a_custom_operation_counts_as_one(parity_here: ParityIn) -> None:
    """What it consists of is not seen, and the text says so."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, "custom")
    assert (found.operation, found.line) == ("hostile.halved.default", WAY)
    assert "hostile.halved.default, which counts as one operation, " in found.text


def test_what_another_thread_writes_is_told_where_it_is_read(parity_here: ParityIn) -> None:
    """Operations of other threads are not seen, and none of this one is blamed for theirs."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, "threaded")
    assert (found.operation, found.kind) == ("aten.lerp_.Scalar", "inputs")
    assert "it reads a value that it alone has, the reference what aten.mm" in found.text
    assert "made as the gradient of 0.weight at hostile.py:" in found.text


def test_code_from_a_string_has_a_line_and_no_source(parity_here: ParityIn) -> None:
    """What `exec` runs has no file."""
    found = culprit(parity_here(Cell(sequence="train3")), LOOP, "exec")
    assert (found.file, found.line, found.source) == ("<string>", 1, ())
    assert len(found.text) < 500
