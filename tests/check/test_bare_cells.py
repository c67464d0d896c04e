"""Bare cells: both sides are compared, and neither is judged by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from examined import verdict_of

from pytest_precision import Cell, Engine, Parity, Workload, layouts, script, workloads
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.rank_probes import rank_probes
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.recorders.variant import Variant
from pytest_precision.registered import OF_PACKAGE, FigureSpec, ProbeSpec, Registered

CELL = Cell(sequence="train2-save-load-train1")

PROBED = ("all", "none")


def twice(rate: str, workload: Workload, cell: Cell) -> Engine:
    """A layout that trains with twice the rate that its workload declares."""
    engine = layouts.adamw(workload, cell)
    engine.optimizer.param_groups[0]["lr"] *= 2
    return engine


class DoublesGradients(Engine):
    """An engine that backpropagates twice the loss."""

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(2 * loss)


def doubled(workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    optimizer = torch.optim.AdamW(workload.groups(model), foreach=False)
    return DoublesGradients(workload, cell, model, optimizer)


def train_unzeroed(record: Any) -> None:
    """Add each step's gradients to those of the steps before."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record():
        for _ in range(2):
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()


@script
def unzeroed(cell: Cell, record: Any) -> None:
    train_unzeroed(record)


@script
def also_unzeroed(cell: Cell, record: Any) -> None:
    train_unzeroed(record)


def twin(workload: Workload, cell: Cell) -> Engine:
    """The reference's layout under another name."""
    return layouts.adamw(workload, cell)


@pytest.mark.parametrize("probes", PROBED)
@pytest.mark.parametrize(
    ("sides", "gate"),
    [
        ((partial(twice, "a"), partial(twice, "b")), "declared_rule"),
        ((unzeroed, also_unzeroed), "loop_rules"),
    ],
    ids=["layouts", "scripts"],
)
def test_what_only_a_probe_sees_passes_without_probes(
    parity_by: Callable[..., Parity], sides: Any, gate: str, probes: str
) -> None:
    """Both sides make the same error, so that they agree; the verdict is no full one."""
    loop = sides[0] is unzeroed
    parity = parity_by(Cell(sequence="train2"), ranks="inline", probes=probes, lines="off")
    verdict = verdict_of(parity, *sides, workload=None if loop else workloads.mlp)
    if probes == "all":
        assert (verdict.outcome, verdict.gate) == ("fail", gate)
    else:
        assert (verdict.outcome, verdict.status) == ("pass", "partial")
        assert (verdict.oracle, verdict.curves, verdict.unexercised) == (None, None, None)


@pytest.mark.parametrize("probes", PROBED)
def test_a_wrong_gradient_is_red_in_both(parity_by: Callable[..., Parity], probes: str) -> None:
    """It is not that of the reference."""
    parity = parity_by(CELL, ranks="inline", probes=probes, lines="off")
    verdict = verdict_of(parity, doubled, layouts.adamw, workload=workloads.mlp)
    assert (verdict.outcome, verdict.gate) == ("fail", "agreement")
    assert "grad" in verdict.reason


def test_a_limit_of_lost_updates_is_no_judgement_of_a_bare_cell(
    parity_by: Callable[..., Parity],
) -> None:
    """Nothing was measured, which is said; with a limit, that would be vacuous."""
    parity = parity_by(CELL, ranks="inline", probes="none")
    sides = twin, layouts.adamw
    verdict = verdict_of(parity, *sides, workload=workloads.mlp, max_lost_updates=0.1)
    assert verdict.status == "partial"


class Yields(workloads.mlp):
    """A workload that makes its microbatches one by one."""

    def microbatches(self, cell: Cell, step: int) -> Any:
        yield from super().microbatches(cell, step)


def test_a_bare_cell_makes_its_data_as_a_full_one(parity_by: Callable[..., Parity]) -> None:
    """All microbatches before the step, although nobody judges what the workload gives."""
    parity = parity_by(CELL, ranks="inline", probes="none")
    assert verdict_of(parity, twin, layouts.adamw, workload=Yields).status == "partial"


@pytest.mark.parametrize("layout", [twin, doubled])
def test_a_red_cell_is_logged_with_data_that_a_workload_yields(
    parity_by: Callable[..., Parity], layout: Any
) -> None:
    """What runs once more is told the same as the run that it repeats."""
    parity = parity_by(Cell(sequence="train1"), ranks="inline")
    verdict = verdict_of(parity, layout, layouts.adamw, workload=Yields)
    assert (verdict.ruling.culprit is None) is (layout is twin)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"checkpoint"}


def test_a_bare_recording_is_the_trace_and_the_data(one_rank: None, tmp_path: Path) -> None:
    """Its bytes are those of a full one, which has logs beside it."""
    cell = Cell(sequence="train2", precision="bf16", primary_weight="bf16")
    sides = layouts.adamw, layouts.adamw
    folders = {bare: tmp_path / str(bare) for bare in (False, True)}
    for bare, folder in folders.items():
        folder.mkdir()
        segment = cell.segments[0]
        probes = rank_probes(OF_PACKAGE, "engine", bare=bare)
        job = LayoutJob(*sides, workloads.mlp, cell, folder, segment, probes=probes)
        record_engine(job._replace(variant=Variant(bare=bare)))
    assert names(folders[True]) == {"rank0.bin", "rank0.json", "data0.json"}
    assert {"oracle0.json", "updates0.json", "data0.json"} <= names(folders[False])
    bytes_of_both = [(folder / "rank0.bin").read_bytes() for folder in folders.values()]
    assert bytes_of_both[0] == bytes_of_both[1]


def test_a_bare_recording_of_a_loop_has_no_log_of_rules(one_rank: None, tmp_path: Path) -> None:
    """A loop has no data of a workload: that log is empty in any case."""
    probes = rank_probes(OF_PACKAGE, "loop", bare=True)
    cell = Cell(sequence="train2")
    record_script(unzeroed, cell, tmp_path, None, variant=Variant(bare=True), probes=probes)
    assert names(tmp_path) == {"rank0.bin", "rank0.json", "data0.json"}


def files_of_reference(case: RecordedCase) -> list[str]:
    """Return which files the ranks of the reference have written."""
    return sorted(path.name for path in case.reference.trace.folder.rglob("*.json"))


@pytest.mark.parametrize("order", [PROBED, PROBED[::-1]], ids="-".join)
def test_what_is_recorded_counts_in_the_key_of_a_reference(
    parity_by: Callable[..., Parity], order: tuple[str, ...]
) -> None:
    """A bare reference does not serve a full check, nor the other way round."""
    figures = [FigureSpec("files", files_of_reference)]
    files = ProbeSpec(name="files", figures=figures, in_bare=True)
    registered = Registered(lambda: [*OF_PACKAGE.probes, files])
    for probes in order:
        parity = replace(parity_by(CELL, probes=probes, lines="off"), registered=registered)
        verdict = verdict_of(parity, doubled, layouts.adamw, workload=workloads.mlp)
        assert ("oracle0.json" in verdict.figures["files"]) is (probes == "all")
