"""State that a restart leaves out is told from a wrong operation, by the line that loads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import restarted_loop
from marked_lines import marked

from pytest_precision import Cell, Parity, ParityError

CELL = Cell(sequence="train2-save-load-train2")


@pytest.mark.parametrize(
    ("forgets", "words"),
    [
        ("moments", "tensor of shape [19, 7], exp_avg of 0.weight, from before the restart"),
        ("generator", "the reference reads the state of a generator from before the restart"),
        ("count", "a counter or setting starts anew: weight is 0.5 here, 0.25 in the reference"),
        (
            "scale",
            "scale of GradScaler at tests/lines/restarted_loop.py:26: the saved value does not",
        ),
        ("average", "the saved value does not replace the one that this line makes"),
    ],
)
def test_the_last_line_that_loads_is_named(
    parity_in: Callable[[Cell], Parity], forgets: str, words: str
) -> None:
    """No operation is wrong, so that the text says which one lacks the state, and of what."""
    sides = (partial(restarted_loop.loop, forgets=one) for one in (forgets, ""))
    with pytest.raises(ParityError) as failure:
        parity_in(CELL).check(*sides, reference_cell=CELL.replace(sequence="train4"))
    found = failure.value.verdict.culprit
    assert found is not None
    assert found.file == str(Path(restarted_loop.__file__).relative_to(Path.cwd()))
    assert found.line == marked(Path(restarted_loop.__file__), forgets), found.text
    assert found.kind == "missing", found.text
    assert words in found.text


def test_what_a_load_has_replaced_is_not_named(parity_in: Callable[[Cell], Parity]) -> None:
    """The first weights are wrong and leave nothing; the data that begin anew reach the loss."""
    loop = restarted_loop.loop_from_first_batch
    with pytest.raises(ParityError) as failure:
        parity_in(CELL).check(loop, loop, reference_cell=CELL.replace(sequence="train4"))
    found = failure.value.verdict.culprit
    assert found is not None
    assert found.operation == "aten.addmm.default", found.text
    assert "the float32 tensor of shape [5, 7] that it reads at step 3 is that of step 1" in (
        found.text
    )
