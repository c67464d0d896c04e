"""The action and the workflow that make one report of shards."""

from __future__ import annotations

import json

import pytest
from runner import Runner

ACTION = "precision-merge"


def shard(runner: Runner, number: int, *, finished: bool = True, outcome: str = "pass") -> None:
    """Leave the report of one of two shards where the artifacts are downloaded to."""
    entry = dict.fromkeys(("candidate", "reference", "workload", "criterion", "reason"), "x")
    numbers = {"observations": 1, "bytes": 4, "seconds": 0.5}
    place = {"nodeid": f"test_it.py::test_it[{number}]", "axes": {}, "details": []}
    cell = entry | numbers | place | {"outcome": outcome}
    head = {"schema": 1, "finished": finished, "planned": 1 if finished else 4}
    folder = runner.workspace / "shards" / f"matrix-{number}-of-2"
    folder.mkdir(parents=True)
    report = head | {"environment": {"world_sizes": [1]}, "cells": [cell]}
    (folder / "report.json").write_text(json.dumps(report))


def test_shards_become_one_report(runner: Runner) -> None:
    """With one summary, one page and one folder, under the name of the matrix."""
    runner.with_pip()
    shard(runner, 1)
    shard(runner, 2)
    assert runner.action(ACTION, shards="2")
    assert runner.outputs == {"outcome": "passed", "cells": "2", "failed": "0"}
    assert "2 cells" in runner.summary.read_text()
    uploads = [values["path"] for name, values in runner.used if "upload" in name]
    assert uploads == ["precision-report", "precision-report/matrix/matrix.html"]
    assert (runner.workspace / uploads[1]).exists()


def test_what_is_downloaded_lies_where_it_is_looked_for(runner: Runner) -> None:
    """A lone artifact too: it would be unpacked without a folder of its name."""
    assert not runner.action(ACTION, shards="2")
    (download,) = [values for name, values in runner.used if "download" in name]
    assert download["path"] == "shards"
    assert download["merge-multiple"] == "True"


def test_a_lost_shard_is_red(runner: Runner) -> None:
    """In summary, annotation and output, though all cells of the others passed."""
    shard(runner, 2)
    assert not runner.action(ACTION, shards="2")
    assert runner.outputs["outcome"] == "unfinished"
    lost = "there is no report of 1 of 2 shards: 1"
    assert f"::error title=precision matrix::{lost}" in runner.log
    assert runner.summary.read_text().startswith(f"**Not finished:** {lost}\n")
    assert "1 cell" in runner.summary.read_text()


def test_half_a_shard_is_red(runner: Runner) -> None:
    """One that was cancelled, or whose machine died, has a report that is not finished."""
    shard(runner, 1, finished=False)
    shard(runner, 2)
    assert not runner.action(ACTION, shards="2")
    assert runner.outputs["outcome"] == "unfinished"
    assert "**Not finished:** 2 cells of 5 ran" in runner.summary.read_text()


def test_a_red_cell_is_red(runner: Runner) -> None:
    """Its reason is an annotation."""
    shard(runner, 1, outcome="fail")
    shard(runner, 2)
    assert not runner.action(ACTION, shards="2")
    assert runner.outputs == {"outcome": "failed", "cells": "2", "failed": "1"}
    assert "::error file=test_it.py" in runner.log


def test_no_shard_at_all_is_red(runner: Runner) -> None:
    """There is nothing to upload then."""
    assert not runner.action(ACTION, shards="2")
    assert "there is no report of 2 of 2 shards: 1 2" in runner.log
    assert "usage:" not in runner.log
    assert [name for name, _ in runner.used if "upload" in name] == []


@pytest.mark.parametrize(("shards", "numbers"), [("1", "[1]"), ("3", "[1,2,3]")])
def test_shards_are_numbered(runner: Runner, shards: str, numbers: str) -> None:
    """As JSON, which is what a job's matrix is made of."""
    assert runner.job("precision.yml", "plan", shards=shards)
    assert runner.outputs == {"shards": numbers}


@pytest.mark.parametrize("shards", ["0", "-1", "2.5"])
def test_no_shards_are_refused(runner: Runner, shards: str) -> None:
    """GitHub says no more than that a vector is empty."""
    assert not runner.job("precision.yml", "plan", shards=shards)
    assert f"expected shards to be 1 or more but got {shards}\n" in runner.log
    assert runner.outputs == {}


def test_a_torn_report_is_red(runner: Runner) -> None:
    """One whose upload was cut off, say: it counts as lost, and the others are shown."""
    shard(runner, 1)
    shard(runner, 2)
    torn = runner.workspace / "shards" / "matrix-1-of-2" / "report.json"
    torn.write_text(torn.read_text()[:40])
    assert not runner.action(ACTION, shards="2")
    assert runner.outputs == {"outcome": "unfinished", "cells": "1", "failed": "0"}
    assert "::error title=precision matrix::there is no report of 1 of 2 shards: 1" in runner.log
    assert "shards/matrix-1-of-2/report.json (Unterminated string" in runner.log


def test_what_cannot_be_installed_stops_the_action(runner: Runner) -> None:
    """There is nothing to upload then."""
    shard(runner, 1)
    runner.program("python3", "echo no network; exit 1")
    assert not runner.action(ACTION, shards="1")
    assert runner.outputs == {}
    assert [name for name, _ in runner.used if "upload" in name] == []
