"""Runs too large for values: shards of any mesh are held to whole tensors by their digests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from meshes import MovesOneShard, Wide, hsdp, moved_shard

from pytest_precision import Cell, Engine, Parity, layouts
from pytest_precision.trace.digests import SMALL_RUN

CELL = Cell("fp32", sequence="train4", world_size=2)


def test_a_run_is_large_enough() -> None:
    """Else the tests below would compare values, as of any small run."""
    parameters = Wide().model(CELL).parameters()
    assert sum(parameter.numel() for parameter in parameters) * 4 > SMALL_RUN


@pytest.mark.parametrize("layout", [layouts.fsdp2, pytest.param(hsdp, marks=pytest.mark.nightly)])
def test_shards_agree_with_whole_tensors(
    parity_in: Callable[[Cell], Parity], layout: Callable[..., Engine]
) -> None:
    """By the sum of the digests of its shards, each tensor has the bits that DDP computes."""
    verdict = parity_in(CELL).check(layout, layouts.ddp, workload=Wide)
    assert verdict.outcome == "pass"
    assert verdict.figures["observations"] > 100


@pytest.mark.parametrize(
    "reference", [layouts.ddp, pytest.param(layouts.fsdp2, marks=pytest.mark.nightly)]
)
def test_a_defect_in_a_shard_is_named(
    parity_in: Callable[[Cell], Parity], reference: Callable[..., Engine]
) -> None:
    """Tensor, element and rank, whether the other side is cut alike or not at all."""
    with pytest.raises(AssertionError) as failure:
        parity_in(CELL).check(moved_shard, reference, workload=Wide)
    text = str(failure.value)
    assert MovesOneShard.NAME in text
    assert "step 2" in text
    assert "rank 1" in text


@pytest.mark.nightly
def test_a_baseline_keeps_whole_tensors(parity_by: Callable[..., Parity], tmp_path: Path) -> None:
    """Text that was kept says nothing of shards: two sides that hold others have the same lines."""
    for mode in ("update", "check"):
        parity = parity_by(CELL, lines="off", baseline=mode, baseline_dir=tmp_path)
        parity.nodeid = "test_mine.py::test_it[fp32]"
        verdict = parity.check(layouts.fsdp2, layouts.ddp, workload=Wide)
        assert verdict.outcome == "pass"
    (text,) = (file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    first, second = text.split("side ")[1:]
    assert "master #" in first
    assert "master #" not in second  # it says that its lines are those of the first side
