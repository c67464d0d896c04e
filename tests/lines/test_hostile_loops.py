"""Whatever a loop does, the line is named or the verdict stands without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision import command
from pytest_precision.check.parity import Parity
from pytest_precision.errors import ParityError
from pytest_precision.matrix.cell import Cell
from pytest_precision.parity.culprit import Culprit

ParityIn = Callable[[Cell], Parity]

LOOP = Path(__file__).with_name("hostile.py")
(MARKED,) = [n for n, line in enumerate(LOOP.read_text().splitlines(), 1) if "# wrong" in line]


def culprit(parity: Parity, file: Path, trick: str) -> Culprit:
    with pytest.raises(ParityError) as failure:
        parity.check(command(file, trick, "wrong"), command(LOOP, trick, "right"))
    verdict = failure.value.verdict
    assert verdict.divergence is not None
    assert verdict.divergence.step == 2
    assert verdict.culprit is not None, verdict.details
    return verdict.culprit


@pytest.mark.parametrize("trick", ["none", "checkpoint", "mode", "func", "autocast", "thread"])
def test_the_line_is_named(parity_in: ParityIn, trick: str) -> None:
    """Recomputation, modes, transforms, autocast and threads change nothing about it."""
    found = culprit(parity_in(Cell(sequence="train3")), LOOP, trick)
    assert (found.file, found.line, found.kind) == (
        LOOP.relative_to(Path.cwd()).as_posix(),
        MARKED,
        "extra",
    ), found.text


def test_code_from_a_string_has_a_line_and_no_source(parity_in: ParityIn) -> None:
    """What `exec` runs has no file."""
    found = culprit(parity_in(Cell(sequence="train3")), LOOP, "exec")
    assert (found.file, found.line, found.source) == ("<string>", 1, ())
    assert len(found.text) < 500
