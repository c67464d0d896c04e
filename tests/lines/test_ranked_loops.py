"""The line is named in loops of several ranks, whatever wraps their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from followed_files import named, naming
from marked_lines import marked

from pytest_precision import Cell, Parity, ParityError, command
from pytest_precision.parity.culprit import Culprit

ParityIn = Callable[[Cell], Parity]

LOOP = Path(__file__).with_name("ranked_loop.py")


def culprit(parity_in: ParityIn, ranks: int, wrapper: str, wrong: str) -> Culprit:
    """Return what is named where both sides run on ranks that all tests share."""
    cell = Cell(sequence="train2", world_size=ranks)
    reference = naming(cell, LOOP, wrapper, "right")
    with pytest.raises(ParityError) as failure:
        parity_in(naming(cell, LOOP, wrapper, wrong)).check(named, named, reference_cell=reference)
    found = failure.value.verdict.culprit
    assert found is not None, failure.value.verdict.details
    return found


def test_the_line_is_named_in_processes_of_a_command(parity_in: ParityIn) -> None:
    """They are new ones, as torchrun starts them, and make the process group themselves."""
    with pytest.raises(ParityError) as failure:
        parity_in(Cell(sequence="train2", world_size=2)).check(
            command(LOOP, "ddp", "rank"), command(LOOP, "ddp", "right")
        )
    found = failure.value.verdict.culprit
    assert found is not None, failure.value.verdict.details
    assert (found.line, found.kind, found.rank) == (marked(LOOP, "rank"), "extra", 1), found.text


@pytest.mark.parametrize(
    ("wrapper", "wrong", "ranks", "kind"),
    [
        ("ddp", "loss", 3, "extra"),
        ("fsdp1", "clip", 2, "constant"),
        ("tensor", "loss", 2, "extra"),
        # On eight ranks; CI has three.
        pytest.param("ddp", "loss", 8, "extra", marks=pytest.mark.nightly),
        pytest.param("fsdp2", "gradient", 8, "extra", marks=pytest.mark.nightly),
        # In DDP, a command of two processes has this one, and FSDP1 and tensor parallelism have
        # each another line.
        pytest.param("ddp", "rank", 2, "extra", marks=pytest.mark.nightly),
        pytest.param("fsdp1", "gradient", 2, "extra", marks=pytest.mark.nightly),
        # In FSDP2, `test_lines_of_shards.py` has the same.
        pytest.param("fsdp2", "rank", 3, "extra", marks=pytest.mark.nightly),
        pytest.param("tensor", "step", 2, "cast", marks=pytest.mark.nightly),
        pytest.param("tensor", "gradient", 2, "extra", marks=pytest.mark.nightly),
        pytest.param("tensor", "clip", 2, "constant", marks=pytest.mark.nightly),
    ],
)
def test_the_line_is_named(
    parity_in: ParityIn, wrapper: str, wrong: str, ranks: int, kind: str
) -> None:
    """And the rank, where one alone computes otherwise."""
    found = culprit(parity_in, ranks, wrapper, wrong)
    assert (found.file, found.line, found.kind) == (
        LOOP.relative_to(Path.cwd()).as_posix(),
        marked(LOOP, wrong),
        kind,
    ), found.text
    assert found.rank == (1 if wrong == "rank" else None)


def test_buckets_of_another_size_are_told_from_an_error(parity_in: ParityIn) -> None:
    """Three ranks add up the parts of a bucket in an order that depends on its size."""
    found = culprit(parity_in, 3, "ddp", "bucket")
    assert (found.kind, found.operation) == ("collective", "c10d.allreduce_.default"), found.text
    assert "a sum in another order, as of buckets of another size, is no error" in found.text
