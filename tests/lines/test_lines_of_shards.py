"""A failure of shards against whole tensors names the line, or says why it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sharded_engines
from sharded_engines import chosen

from pytest_precision import Cell, Engine, Parity, ParityError, Verdict, layouts, workloads

ParityIn = Callable[[Cell], Parity]

HERE = Path(sharded_engines.__file__)


def verdict(parity_in: ParityIn, name: str, ranks: int) -> Verdict:
    plain = Cell(sequence="train1", world_size=ranks)
    parity = parity_in(replace(plain, extra=(("engine", name),)))
    with pytest.raises(ParityError) as failure:
        parity.check(chosen, layouts.adamw, workload=workloads.mlp, reference_cell=plain)
    return failure.value.verdict


def wrong_line(kind: type[Engine]) -> int:
    """Return the number of the line that is marked."""
    owner = sharded_engines.scaled if kind is sharded_engines.OtherForward else kind
    lines, first = inspect.getsourcelines(owner)
    (found,) = [number for number, line in enumerate(lines, first) if line.endswith("# wrong\n")]
    return found


@pytest.mark.parametrize(
    ("name", "ranks", "kind"),
    [
        ("WeighsLosses", 2, "constant"),
        ("HalvesOnOneRank", 2, "extra"),
        ("RoundsWeights", 2, "cast"),
        # In whole tensors, and of the same kind on shards, these are found by day.
        pytest.param("ShrinksMoments", 2, "extra", marks=pytest.mark.nightly),
        pytest.param("OtherForward", 2, "extra", marks=pytest.mark.nightly),
        pytest.param("HalvesGradients", 2, "extra", marks=pytest.mark.nightly),
        pytest.param("ClipsByOwnNorm", 2, "inputs", marks=pytest.mark.nightly),
        pytest.param("ClipsFurther", 2, "constant", marks=pytest.mark.nightly),
        # On two ranks, lines of these kinds are found above.
        pytest.param("HalvesOnOneRank", 4, "extra", marks=pytest.mark.nightly),
        pytest.param("WeighsLosses", 4, "constant", marks=pytest.mark.nightly),
        pytest.param("ClipsFurther", 4, "constant", marks=pytest.mark.nightly),
        pytest.param("RoundsWeights", 4, "cast", marks=pytest.mark.nightly),
    ],
)
def test_the_wrong_line_is_named(parity_in: ParityIn, name: str, ranks: int, kind: str) -> None:
    """Shards are parts of the tensors that the other side has, and so is what is made of them."""
    found = verdict(parity_in, name, ranks).culprit
    assert found is not None
    assert (found.file, found.line, found.kind) == (
        str(HERE.relative_to(Path.cwd())),
        wrong_line(getattr(sharded_engines, name)),
        kind,
    ), found.text
    assert found.rank == (1 if name == "HalvesOnOneRank" else None)


# In DDP, a loop of three ranks has such a sum by day.
@pytest.mark.nightly
def test_a_sum_in_another_order_is_no_line_of_the_users(parity_in: ParityIn) -> None:
    """On three ranks a reduction of shards adds up otherwise, and nothing else is blamed for it."""
    found = verdict(parity_in, "Right", 3).culprit
    assert found is not None
    assert (found.kind, found.operation) == ("collective", "c10d._reduce_scatter_base_.default")
    assert "other ranks, or another reduction, made the value wrong" in found.text
