"""The terminal, report.json and the page say the same of the cells of a session."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from pages import Element, parse
from written import read_report

from pytest_precision.__main__ import main
from pytest_precision.report.grid import by_test, grid
from pytest_precision.report.read import Report
from pytest_precision.report.status import STATUSES

SUITE = """
import functools
import time

import pytest
import torch
from pytest_precision import layouts, script, workloads

axes = functools.partial(pytest.mark.precision_matrix, sequence=["train"])


def another(workload, cell):
    return layouts.adamw(workload, cell)


def other_rate(workload, cell):
    engine = layouts.adamw(workload, cell)
    engine.optimizer.param_groups[0]["lr"] *= 2
    return engine


@script
def loop(cell, record, rate=0.1):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with record():
        while True:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@axes(mine=["a", "b"], world_size=[1, 2])
def test_recordings(parity, cell):
    time.sleep(0.3)  # as if they were recorded here
    parity.compare("one", "same" if cell.mine == "a" else "other")


@axes(mine=[1, 2])
def test_several_checks(parity, cell):
    parity.check(layouts.adamw, another, workload=workloads.mlp)
    parity.check(layouts.adamw, other_rate if cell.mine == 2 else another, workload=workloads.mlp)
    parity.compare("one", "same")
    assert cell.mine == 1


@axes(world_size=[1, 2], on=["reference", "both"])
def test_reference_cell(parity, cell):
    elsewhere = cell.replace(world_size=1) if cell.on == "reference" else None
    parity.check(layouts.adamw, another, workload=workloads.mlp, reference_cell=elsewhere)


@axes(rate=[0.1, 0.2])
def test_scripts(parity, cell):
    parity.check(functools.partial(loop, rate=cell.rate), functools.partial(loop, rate=0.1))


@axes(world_size=[1, 2])
def test_skipped(cell):
    pytest.skip("not here")
"""

TRAIN = """
import sys
import torch
torch.manual_seed(1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
while True:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a script at two rates, the first of which another folder has as well."""
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "train.py").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, rate in (("one", "0.1"), ("other", "0.2")):
            words = ["record", "--out", name, "--steps", "1", "--", "train.py", rate]
            assert main(words) == 0
    shutil.copytree(folder / "one", folder / "same")
    return folder


# With workers, CI has the cells of report.json and the terminal in `modes/test_same_answers.py`.
@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.nightly)])
def test_grids(pytester: pytest.Pytester, recordings: Path, workers: tuple[str, ...]) -> None:
    """Each cell stands in report.json by the axes of its test, however it was checked."""
    pytester.makepyfile(test_all=SUITE)
    for name in ("one", "same", "other"):
        (pytester.path / name).symlink_to(recordings / name)
    options = ("--precision-matrix", "--precision-report=report", "--precision-timeout=120")
    # So that cells share ranks, and none is run again: no grid has a line of code.
    options += ("-o", "precision_pure=true", "-oprecision_lines=off")
    run = pytester.runpytest_subprocess if workers else pytester.runpytest_inprocess
    result = run(*options, *workers)
    cells = Report.of(read_report("report/report.json")).cells
    shown = "\n".join(line.rstrip() for line in result.outlines)
    for own in by_test(cells):
        lines = ["".join(text for text, _ in line).rstrip() for line in grid(own, 80)]
        assert "\n".join(lines) in shown, own[0].test
    assert {(cell.axes["mine"], cell.status) for cell in cells if "recordings" in cell.test} == {
        ("a", "pass"),
        ("b", "fail"),
    }
    assert all(cell.seconds > 0.3 for cell in cells if "recordings" in cell.test)
    grids = parse(Path("report/report.html")).all("table", **{"class": "grid"})
    marks = [mark for one in grids for mark in one.all("td")]
    labels = [mark.attributes.get("title") or _link(mark).get("title") for mark in marks]
    shown = Counter(label for label in labels if label)
    assert shown == Counter(
        f"{STATUSES[cell.status].word}: "
        + ", ".join(f"{name} {value}" for name, value in cell.axes.items())
        for cell in cells
    )


def _link(mark: Element) -> dict[str, str | None]:
    """The attributes of the link in a field of a grid, or none."""
    return next((link.attributes for link in mark.all("a")), {})
