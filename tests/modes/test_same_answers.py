"""One suite in every mode: the same tests, outcomes, verdicts, reports and exit status."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import in_every_mode
import launches
import pytest
from written import read_report

CELLS = [f"test_parity[train-save-restart@2-train-w{size}]" for size in (1, 2)]
"""Of test_outcomes.py."""

ERROR = "test_has_no_verdict[train1-w2]"
"""A cell of test_outcomes.py whose layout ends its ranks."""

OUTCOMES = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_raises": "failed",
    "test_dies": "failed",
    "test_after_all_that": "passed",
    "test_fails_as_expected": "xfailed",
    "test_on_three": "passed",
    **dict.fromkeys(CELLS, "passed"),
    ERROR: "failed",
    "test_without_ranks": "passed",
}
"""Of the tests in test_outcomes.py."""

LAUNCHES = ("torchrun on two nodes", "Slurm")


@dataclass
class Scenario:
    """The suite of `in_every_mode.py` after it has run in one of the modes."""

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

    def cases(self, file: str) -> dict[str, ElementTree.Element]:
        """Return what the JUnit file says of each test in a file of the suite."""
        cases = ElementTree.parse(self.folder / "junit.xml").iter("testcase")
        return {case.get("name", ""): case for case in cases if case.get("classname") == file}


# CI has a session without workers, and its reports, in `plugin/test_parity.py`.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param("plain", marks=pytest.mark.nightly),
        "xdist",
        pytest.param("two workers of xdist", marks=pytest.mark.nightly),
        LAUNCHES[0],
        pytest.param(LAUNCHES[1], marks=pytest.mark.nightly),
    ],
)
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """One session in each mode, since starting it takes most of the time.

    With one worker a session of xdist has all that two have but a second fork server.
    """
    if "xdist" in request.param:
        pytest.importorskip("xdist")
    folder = tmp_path_factory.mktemp("suite")
    for name, text in in_every_mode.FILES.items():
        (folder / name).write_text(text)
    options = "--precision-matrix --precision-report=report --junit-xml=junit.xml -rs"
    if request.param in ("xdist", LAUNCHES[0]):  # Slurm has lines, and so has test_parity.py
        options += " -o precision_lines=off"
    return Scenario(request.param, folder, launches.run(folder, request.param, *options.split()))


@pytest.mark.long(reason="It is the first to ask for a session on two nodes, whose ranks are new.")
def test_outcomes_and_their_causes(scenario: Scenario) -> None:
    """The JUnit file is whole and has every test once."""
    every = list(ElementTree.parse(scenario.folder / "junit.xml").iter("testcase"))
    cases = scenario.cases("test_outcomes")
    assert len(every) == len(OUTCOMES) + len(scenario.cases("test_isolation")) + 2
    assert {name: outcome(case) for name, case in cases.items()} == scenario.outcomes
    messages = {name: child.get("message") for name, case in cases.items() for child in case}
    assert "rank 1 of 2 in test_outcomes:raises raised KeyError" in messages["test_raises"]
    assert "rank 1 of 2 in test_outcomes:dies died: exit status 3" in messages["test_dies"]


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
    # The rules at both ends are short where the time has minutes: "in 62.11s (0:01:02)".
    assert len(re.findall(r"^=+ .* passed.* in .*s (\(.*\) )?=+$", output, re.MULTILINE)) == 1
    header = f"precision: {scenario.launcher}, 2 ranks: this process runs the tests"
    assert output.count(header) == (scenario.mode in LAUNCHES)


def test_report_and_cache(scenario: Scenario) -> None:
    """One report.json of the cells, and one cache for `--lf`."""
    cells = read_report(scenario.folder / "report" / "report.json")["cells"]
    told = {cell["nodeid"].partition("::")[2]: cell["outcome"] for cell in cells}
    assert {name: told.pop(name) for name in (*CELLS, ERROR)} == {
        **dict.fromkeys(CELLS, "pass"),
        ERROR: "error",
    }
    assert len(told) == 5
    assert all(told[name] == ("fail" if "differs" in name else "pass") for name in told)
    failed = json.loads((scenario.folder / ".pytest_cache/v/cache/lastfailed").read_text())
    found = {name.partition("::test_")[2] for name in failed if "outcomes" in name}
    assert found == {"fails", "raises", "dies", ERROR.removeprefix("test_")}


def test_a_layout_that_changes_its_process_changes_no_verdict(scenario: Scenario) -> None:
    """One that patches torch, or counts its calls, fails in every cell, and tests after it pass."""
    cases = scenario.cases("test_isolation")
    assert len(cases) == 5
    for name, case in cases.items():
        assert outcome(case) == ("failed" if "differs" in name else "passed")
    for change in ("gelu was replaced by patches:gelu", "patches.CALLS was 0, is 1"):
        assert change in scenario.ended.output
    assert "torch.nn.Linear.forward was replaced by patches:forward" in scenario.ended.output


def test_collectives_come_in_one_order(scenario: Scenario) -> None:
    """A checkpoint gathers six tensors of each parameter, which no set may order: processes of a
    launch hash strings differently, and ranks that are forked from one server do not.
    """
    cases = scenario.cases("test_hashes")
    assert [outcome(case) for case in cases.values()] == ["passed", "passed"]
    (hashes,) = cases["test_hashes"].iter("property")
    assert hashes.get("value") == ("2" if scenario.mode in LAUNCHES else "1")


def outcome(case: ElementTree.Element) -> str:
    """What a JUnit file says of a test."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
