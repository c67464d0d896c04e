"""Axes of the user's own that nothing reads, in sessions with real ranks, plain and under xdist."""

from __future__ import annotations

import re
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from written import read_report

SUITE = """
import functools
import pytest
import torch
from pytest_precision import Engine, command, layouts, script, workloads

axes = functools.partial(pytest.mark.precision_matrix, sequence=["train"])


def another(workload, cell):
    return layouts.adamw(workload, cell)


def reads(workload, cell):
    assert cell.fused in (False, True)
    return layouts.adamw(workload, cell)


def reads_late(workload, cell):
    class Late(Engine):
        def optimizer_step(self):
            assert self.cell.late in (0, 1)
            super().optimizer_step()

    model = workload.model(cell)
    return Late(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def reads_all(workload, cell):
    assert "whole" in cell.axes
    return layouts.adamw(workload, cell)


class Read(workloads.mlp):
    def microbatches(self, cell, step):
        assert cell.data in (0, 1)
        return super().microbatches(cell, step)


@script
def loop(cell, record, rate=0.1):
    model = torch.nn.Linear(3, cell.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with record():
        while True:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def check(parity, candidate, reference=layouts.adamw, workload=workloads.mlp, **more):
    parity.check(candidate, reference, workload=workload, **more)


@pytest.fixture
def in_a_fixture(cell):
    return cell.fixture


@axes(glu_interlave=[0, 32], world_size=[1, 2])
def test_nothing_reads(parity):
    check(parity, layouts.adamw, another)


@axes(fused=[False, True], world_size=[2], of_ranks=[1])
def test_a_layout_reads(parity):
    check(parity, reads, another)


@axes(late=[0], whole=[0], data=[0])
@pytest.mark.parametrize("again", [0, 1])
def test_late_and_kept(parity, again):
    check(parity, reads_late, reads_all, Read)


@axes(width=[2])
def test_a_script_reads(parity):
    parity.check(loop, functools.partial(loop, rate=0.1))


@axes(seed=[1])
def test_a_command_reads(parity):
    parity.check(command("train.py", "{seed}"), command("train.py", "{seed}", "reference"))


@axes(body=[1], fixture=[1], mode=[1, 2], replaced=[1])
def test_the_test_reads(cell, in_a_fixture):
    assert cell.body and (cell.mode == 2 or True)
    cell.replace(replaced=2)


@axes(sometimes=[0, 1], skipped=[1])
def test_some_cells_read(cell):
    if cell.sometimes:
        pytest.skip("not here")
    assert cell.skipped


@axes(deep=[0, 1])
@pytest.mark.parametrize("reads", [0, 1])
def test_one_reads(cell, reads):
    assert not reads or cell.deep in (0, 1)
"""

TRAIN = """
import torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.nightly)])
def test_axes_that_nothing_reads(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    """An axis is named that neither test, layout, workload, script nor command reads."""
    pytester.makepyfile(test_axes=SUITE, train=TRAIN)
    options = ("--precision-matrix", "--precision-report=report", "--precision-timeout=120")
    options += () if workers else ("-o", "precision_pure=true")  # so that cells share ranks
    run = pytester.runpytest_subprocess if workers else pytester.runpytest_inprocess
    result = run(*options, *workers)
    result.assert_outcomes(passed=17, skipped=1)
    text = " ".join(result.stdout.str().split())
    notes = re.findall(r"no code read the axis \S+ in \d+ cells? of \S+", text)
    assert notes == [
        "no code read the axis glu_interlave in 4 cells of test_axes.py::test_nothing_reads",
        "no code read the axis of_ranks in 2 cells of test_axes.py::test_a_layout_reads",
    ]
    unread = {
        (entry["nodeid"].partition("[")[0], *entry["unread"])
        for entry in read_report("report/report.json")["cells"]
        if entry["observations"] and "unread" in entry
    }
    assert unread == {
        ("test_axes.py::test_nothing_reads", "glu_interlave"),
        ("test_axes.py::test_a_layout_reads", "of_ranks"),
    }
    page = Path("report/report.html").read_text()
    assert all(f"<li>{note}</li>" in page for note in notes)
