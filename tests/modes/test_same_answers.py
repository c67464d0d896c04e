"""One suite in every mode: the same tests, outcomes, reports and exit status."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import launches
import pytest
from written import read_report

SUITE = """
import os

import pytest

from pytest_precision import layouts, workloads


def sum_of_ranks(weight):
    import torch
    import torch.distributed as dist

    total = torch.tensor(dist.get_rank() * weight)
    dist.all_reduce(total)
    return total.item()


def raises():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise KeyError("on rank 1")
    dist.barrier()


def dies():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def variables():
    of_launchers = ("TORCHELASTIC_", "MASTER_", "SLURM_STEP_", "SLURM_PROCID")
    left = [name for name in os.environ if name.startswith(of_launchers)]
    return os.environ["WORLD_SIZE"], os.environ.get("PLANTED"), left


@pytest.mark.world_size(2)
def test_passes(ranks):
    assert ranks.run(sum_of_ranks, weight=3) == [3, 3]


@pytest.mark.world_size(2)
def test_fails(ranks):
    assert ranks.run(sum_of_ranks, 1) == [1, 2]


@pytest.mark.world_size(2)
def test_raises(ranks):
    ranks.run(raises)


@pytest.mark.world_size(2)
def test_dies(ranks):
    ranks.run(dies)


@pytest.mark.world_size(2)
def test_after_all_that(ranks, monkeypatch):
    monkeypatch.setenv("PLANTED", "by the test")
    assert ranks.run(variables) == [("2", "by the test", [])] * 2


@pytest.mark.xfail(reason="known")
@pytest.mark.world_size(2)
def test_fails_as_expected(ranks):
    ranks.run(raises)


@pytest.mark.world_size(3)
def test_on_three(ranks):
    assert ranks.run(sum_of_ranks, 1) == [3, 3, 3]


@pytest.mark.precision_matrix(sequence=["train2", "train-save-restart@2-train"], world_size=[1, 2])
def test_parity(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


def test_without_ranks(tmp_path):
    pass
"""

CELLS = [
    f"test_parity[{sequence}-w{size}]"
    for sequence in ("train-save-restart@2-train", "train2")
    for size in (1, 2)
]

OUTCOMES = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_raises": "failed",
    "test_dies": "failed",
    "test_after_all_that": "passed",
    "test_fails_as_expected": "xfailed",
    "test_on_three": "passed",
    **dict.fromkeys(CELLS, "passed"),
    "test_without_ranks": "passed",
}

LAUNCHES = ("torchrun on two nodes", "Slurm")


@dataclass
class Scenario:
    mode: str
    folder: Path
    ended: launches.Session

    @property
    def launcher(self) -> str:
        return self.mode.partition(" ")[0]

    @property
    def outcomes(self) -> dict[str, str]:
        """Where only two processes were started, three ranks cannot be had."""
        return {**OUTCOMES, **({"test_on_three": "skipped"} if self.mode in LAUNCHES else {})}


@pytest.fixture(scope="module", params=["plain", "xdist", *LAUNCHES])
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """The suite after it has run in one of the modes."""
    if request.param == "xdist":
        pytest.importorskip("xdist")
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_suite.py").write_text(SUITE)
    options = "--precision-matrix --precision-report=report --junit-xml=junit.xml -rs"
    return Scenario(request.param, folder, launches.run(folder, request.param, *options.split()))


def test_outcomes_and_their_causes(scenario: Scenario) -> None:
    """The JUnit file is whole and has every test once."""
    cases = list(ElementTree.parse(scenario.folder / "junit.xml").iter("testcase"))
    assert sorted(case.get("name") for case in cases) == sorted(OUTCOMES)
    assert {case.get("name"): outcome(case) for case in cases} == scenario.outcomes
    messages = {case.get("name"): child.get("message") for case in cases for child in case}
    assert "rank 1 of 2 in test_suite:raises raised KeyError" in messages["test_raises"]
    assert "rank 1 of 2 in test_suite:dies died: exit status 3" in messages["test_dies"]


def test_a_world_size_that_a_launch_lacks(scenario: Scenario) -> None:
    """It is skipped with the number; other modes have as many ranks as they like."""
    said = f"since {scenario.launcher} started 2, but got world_size=3"
    assert (said in scenario.ended.output) == (scenario.mode in LAUNCHES)


def test_exit_status(scenario: Scenario) -> None:
    """That of a failure, also on other nodes: torchrun would wait minutes for their success. A
    process that only held a rank on the controller's node succeeds.
    """
    expected = {"torchrun on two nodes": [1, 1], "Slurm": [1, 0]}
    assert scenario.ended.statuses == expected.get(scenario.mode, [1])


def test_one_terminal(scenario: Scenario) -> None:
    """One process writes, from the header to the summary."""
    output = scenario.ended.output
    assert output.count("test session starts") == output.count("precision matrix ===") == 1
    assert len(re.findall(r"=== .* passed.* in .*s (\(.*\) )?===", output)) == 1
    header = f"precision: {scenario.launcher}, 2 ranks: this process runs the tests"
    assert output.count(header) == (scenario.mode in LAUNCHES)


def test_report_and_cache(scenario: Scenario) -> None:
    """One report.json of the cells, and one cache for `--lf`."""
    cells = read_report(scenario.folder / "report" / "report.json")["cells"]
    names = sorted(cell["nodeid"] for cell in cells if cell["outcome"] == "pass")
    assert names == [f"test_suite.py::{name}" for name in CELLS]
    failed = json.loads((scenario.folder / ".pytest_cache/v/cache/lastfailed").read_text())
    assert {name.partition("::test_")[2] for name in failed} == {"fails", "raises", "dies"}


def outcome(case: ElementTree.Element) -> str:
    """What a JUnit file says of a test."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
