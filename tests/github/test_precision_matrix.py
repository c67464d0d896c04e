"""The action that runs a matrix, step by step, with real cells on the CPU."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from runner import GITHUB, Runner, runs
from slack import slack

ACTION = "precision-matrix"
UPLOAD = "actions/upload-artifact"

SUITE = """
import time
from pathlib import Path
import pytest

@pytest.mark.precision_matrix(precision=["fp32", "bf16"], sequence=["train1"])
def test_made_up(cell):
    Path("started").touch()
    {body}
"""


@pytest.fixture
def suite(runner: Runner) -> Path:
    """A file whose cells do what is put in the place of `{body}`."""
    return runner.workspace / "test_suite.py"


def run(runner: Runner, suite: Path, body: str, **inputs: str) -> bool:
    """Run the action on cells with this body."""
    suite.write_text(SUITE.format(body=body))
    return runner.action(ACTION, device="cpu", **inputs)


@pytest.mark.slow
def test_a_green_matrix(runner: Runner, suite: Path) -> None:
    """Has outputs, a summary and two artifacts: the folder, and the page that opens by itself."""
    runner.with_pip()
    chosen = {"select": "precision=fp32,bf16\nsequence=train1\n", "paths": "test_suite.py\n"}
    assert run(runner, suite, "pass", install="touch installed", **chosen)
    assert runner.outputs == {"outcome": "passed", "cells": "2", "failed": "0"}
    assert "2 cells" in runner.summary.read_text()
    assert "::error" not in runner.log
    folder = {"name": "precision-report-matrix", "path": "precision-report"}
    page = {"path": "precision-report/matrix/matrix.html", "archive": "False"}
    assert runner.used == [(UPLOAD, folder), (UPLOAD, page)]
    assert (runner.workspace / page["path"]).read_text().startswith("<!doctype html>")
    assert (runner.workspace / "installed").exists()
    assert "torch==" in (runner.workspace / "precision-report/matrix/versions.txt").read_text()


@pytest.mark.slow
def test_a_red_matrix(runner: Runner, suite: Path) -> None:
    """Is red, with an annotation, and has its report all the same."""
    assert not run(runner, suite, "assert cell.precision == 'fp32'")
    assert runner.outputs == {"outcome": "failed", "cells": "2", "failed": "1"}
    assert "::error file=test_suite.py,line=" in runner.log
    assert [name for name, _ in runner.used] == [UPLOAD, UPLOAD]


@pytest.mark.slow
def test_a_shard_leaves_its_report_to_be_published(runner: Runner, suite: Path) -> None:
    """It runs its share of the cells, and only uploads what they left, under its own name."""
    assert run(runner, suite, "pass", shard="1/2", name="matrix-1-of-2", publish="false")
    assert runner.outputs["cells"] == "1"
    assert not runner.summary.exists()
    folder = {"name": "precision-report-matrix-1-of-2", "path": "precision-report"}
    assert runner.used == [(UPLOAD, folder)]
    assert (runner.workspace / "precision-report/matrix-1-of-2/report.json").exists()


@pytest.mark.slow
def test_a_matrix_is_compared_with_a_commit(runner: Runner, suite: Path) -> None:
    """Log and summary say with which."""
    suite.touch()
    git = ["git", "-C", str(runner.workspace), "-c", "user.name=A", "-c", "user.email=a@b.example"]
    for words in (["init", "-q"], ["add", "test_suite.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    assert run(runner, suite, "pass", against="HEAD")
    earlier = "each side was also compared with itself at the commit HEAD"
    assert f"precision: {earlier}" in runner.log
    assert f"**In time:** {earlier}.\n" in runner.summary.read_text()


def test_without_a_gpu_nothing_runs(runner: Runner, suite: Path) -> None:
    """Neither is anything installed, nor a report missed."""
    assert not runner.action(ACTION, install="touch installed")
    assert not (runner.workspace / "installed").exists()
    assert (runner.outputs, runner.used) == ({}, [])
    assert runner.log.count("::error") == 1


def test_what_cannot_be_installed_stops_the_action(runner: Runner) -> None:
    """With the first command that fails."""
    assert not runner.action(ACTION, device="cpu", install="false\ntouch installed")
    assert not (runner.workspace / "installed").exists()
    assert runner.used == []


@pytest.mark.slow
def test_a_missing_report_is_said(runner: Runner, suite: Path) -> None:
    """A report of the run before does not pass for one of this run."""
    old = runner.workspace / "precision-report" / "matrix"
    old.mkdir(parents=True)
    (old / "report.json").write_text("{}")
    assert not run(runner, suite, "pass", shard="3/2")
    assert "expected precision-report/matrix/report.json but there is none" in runner.log
    assert runner.outputs == {}


def test_a_report_that_is_not_finished_is_red(runner: Runner) -> None:
    """Even if pytest had ended with status 0."""
    folder = runner.workspace / "precision-report"
    folder.mkdir()
    environment = {"world_sizes": [1]}
    report = {"schema": 1, "finished": False, "planned": 2, "environment": environment, "cells": []}
    (folder / "report.json").write_text(json.dumps(report))
    variables = {"PYTHON": "python3", "PUBLISH": "true", "REPORT": str(folder)}
    block = '"$GITHUB_ACTION_PATH/read-report"'
    process = runner.start(block, GITHUB / "actions" / ACTION, variables)
    written, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert runner.outputs["outcome"] == "unfinished"
    assert "::error title=precision matrix::not finished: 0 cells of 2 ran" in written


def started(runner: Runner, suite: Path, **changes: str) -> subprocess.Popen[str]:
    """Start the step that runs the matrix, on cells that take for ever; wait until one runs."""
    suite.write_text(SUITE.format(body="time.sleep(3600)"))
    names = {"COVERAGE": "full", "DEVICE": "cpu", "BACKEND": "auto", "TIMEOUT": "300"}
    rest = {
        "PYTHON": "python3",
        "PATHS": ".",
        "SHARD": "1/1",
        "SELECT": "",
        "AGAINST": "",
        "MINUTES": "60",
    }
    variables = names | rest | {"REPORT": "precision-report/matrix"} | changes
    (block,) = [
        block for block in runs(GITHUB / "actions" / ACTION / "action.yml") if "exec" in block
    ]
    process = runner.start(block, GITHUB / "actions" / ACTION, variables)
    while not (runner.workspace / "started").exists() and process.poll() is None:
        time.sleep(0.05)
    return process


@pytest.mark.slow
def test_a_cancelled_shard_closes_its_report(runner: Runner, suite: Path) -> None:
    """The runner interrupts the process that it started, and no other: that must reach pytest."""
    process = started(runner, suite)
    process.send_signal(signal.SIGINT)
    written, _ = process.communicate(timeout=slack())
    assert "KeyboardInterrupt" in written
    assert (runner.workspace / "precision-report/matrix/report.html").exists()


@pytest.mark.slow
def test_the_cells_together_have_a_deadline(runner: Runner, suite: Path) -> None:
    """Then pytest is interrupted."""
    process = started(runner, suite, MINUTES=str(slack() / 60))
    written, _ = process.communicate(timeout=2 * slack())
    assert process.returncode == 124
    assert "KeyboardInterrupt" in written
