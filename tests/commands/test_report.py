"""The report commands, on report.json files alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.__main__ import main


def report(folder: Path, **changes: Any) -> str:
    """Write the report of one failing cell; return the name of its folder."""
    entry = dict.fromkeys(("candidate", "reference", "workload", "criterion"), "x")
    entry |= {"nodeid": f"test_it.py::test_it[{folder.name}]", "axes": {}, "outcome": "fail"}
    numbers = {"observations": 1, "bytes": 4, "seconds": 0.5}
    cell = entry | numbers | {"reason": "param differs", "details": [], **changes}
    head = {"schema": 1, "finished": True, "planned": 1, "environment": {"world_sizes": [1]}}
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(head | {"cells": [cell]}))
    return folder.name


def test_shards_become_one_page(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both files are in the folder that was named, and the page is what is printed."""
    names = report(in_folder / "a"), report(in_folder / "b")
    assert main(["report", "merge", *names, "--out", "all"]) == 0
    assert capsys.readouterr().out == "all/report.html\n"
    assert "2 of 2 cells failed" in Path("all/report.html").read_text()
    assert len(json.loads(Path("all/report.json").read_text())["cells"]) == 2


def test_a_merge_says_which_shard_is_lost(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the screen, on the page and in the outcome; the report of a shard alone is what it is."""
    name = report(in_folder / "a", outcome="pass")
    file = in_folder / "a" / "report.json"
    content = json.loads(file.read_text())
    content["environment"]["flags"] = {"shard": [1, 2]}
    file.write_text(json.dumps(content))
    assert main(["report", "merge", name, "--out", "all"]) == 0
    lost = "there is no report of 1 of 2 shards: 2"
    assert capsys.readouterr().err == f"pytest_precision: not finished: {lost}\n"
    assert lost in Path("all/report.html").read_text()
    assert main(["report", "counts", "all"]) == main(["report", "counts", name]) == 0
    assert capsys.readouterr().out == (
        "outcome=unfinished\ncells=1\nfailed=0\noutcome=passed\ncells=1\nfailed=0\n"
    )


def test_a_report_that_cannot_be_written_leaves_the_one_before(
    in_folder: Path, files_of_at_most: Callable[[int], None]
) -> None:
    """Such as on a full disk."""
    name = report(in_folder / "a")
    assert main(["report", "merge", name, "--out", "all"]) == 0
    before = (in_folder / "all" / "report.json").read_bytes()
    files_of_at_most(100)
    with pytest.raises(SystemExit, match="2"):
        main(["report", "merge", name, "--out", "all"])
    assert (in_folder / "all" / "report.json").read_bytes() == before


def test_a_page_is_made_later(in_folder: Path) -> None:
    """Of a session that was killed before it wrote its own."""
    assert main(["report", "html", report(in_folder / "a")]) == 0
    assert "1 of 1 cell failed" in Path("a/report.html").read_text()


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        ("summary", "## Precision matrix: 2 of 2 cells failed"),
        ("annotations", "::error file="),
        ("sarif", '{\n  "$schema": "https://docs.oasis-open.org/'),
    ],
)
def test_text_for_ci(
    in_folder: Path, capsys: pytest.CaptureFixture[str], command: str, begins: str
) -> None:
    """Several reports are summarized as if they were one."""
    assert main(["report", command, report(in_folder / "a"), report(in_folder / "b")]) == 0
    assert capsys.readouterr().out.startswith(begins)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a report.json but got lost/report.json (No such file or directory)"),
        ("{", "expected a report.json but got lost/report.json (Expecting property name"),
        (
            '{"schema": 2}',
            "expected a report.json of schema 1 but got lost/report.json of schema=2; install the "
            "release of pytest-precision that wrote it, or a later one",
        ),
        (
            '{"schema": null}',
            "expected a report.json of schema 1 but got lost/report.json of schema=None; write it "
            "again, with --precision-report=DIR of this release",
        ),
        ('{"schema": 1}', "expected entries as the schema of report.json describes them but got"),
    ],
)
def test_what_is_no_report_is_refused(
    in_folder: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    """Before anything is written, with what is there instead."""
    if text is not None:
        Path("lost").mkdir()
        Path("lost/report.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["report", "summary", "lost"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["summary", "annotations", "counts", "html", "sarif"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": [["w", 1]]}, "axes to be object but got [['w', 1]]"),
        ({"axes": {"w": [1]}}, "an entry of axes to be string or number or boolean or null but"),
        ({"seconds": float("nan")}, "seconds to be number but got nan"),
        ({"seconds": 10**400}, "seconds to be number but got 1000"),
        ({"details": "DEEP"}, "a/report.json (maximum recursion depth exceeded"),
        ({"line": -1}, "line to be at least 0 but got -1"),
        (
            {"outcome": []},
            "outcome to be one of pass, fail, drift, vacuous, skip, error but got []",
        ),
        ({"divergence": {}}, "divergence to have"),
    ],
)
def test_what_no_session_writes_is_refused(
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
    command: str,
) -> None:
    """A report of another job is looked at before anything is computed with it."""
    file = in_folder / report(in_folder / "a", **changes) / "report.json"
    file.write_text(file.read_text().replace('"DEEP"', "[" * 100_000 + "]" * 100_000))
    with pytest.raises(SystemExit, match="2"):
        main(["report", command, "a"])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["summary", "annotations", "sarif"])
def test_nothing_in_a_report_is_a_command_to_the_runner(
    in_folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A job prints it, and its runner reads what is printed."""
    planted = "::set-output name=a::b"
    changes = {"axes": {"x": planted, "y": f"##[error]{planted}"}, "reason": f"it\n{planted}"}
    names = [report(in_folder / "a", **changes), report(in_folder / "b", axes={"x": 1, "y": 2})]
    assert main(["report", command, *names]) == 0
    found = capsys.readouterr().out
    assert planted[2:] in found
    lines = [line for line in found.splitlines() if line.lstrip().startswith("::")]
    assert [line for line in lines if not line.startswith("::error file=test_it.py,")] == []
    assert "##[" not in found.replace("::error", "")


def test_torch_is_not_needed(in_folder: Path) -> None:
    """The job of a workflow that only merges installs none; nor does it wait for pytest."""
    for name in ("torch", "pytest"):
        (in_folder / f"{name}.py").write_text("raise ImportError('not here')")
    words = [sys.executable, "-m", "pytest_precision", "report", "merge", "--out", "all"]
    found = subprocess.run([*words, report(in_folder / "a")], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "failed"),
        ({"outcome": "pass"}, "passed"),
        ({"outcome": "skip"}, "passed"),
    ],
)
def test_counts_for_a_script(
    in_folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], outcome: str
) -> None:
    """Lines that GitHub takes as outputs."""
    assert main(["report", "counts", report(in_folder / "a", **changes)]) == 0
    failed = int(outcome == "failed")
    assert capsys.readouterr().out == f"outcome={outcome}\ncells=1\nfailed={failed}\n"


@pytest.mark.parametrize("changes", [{"finished": False}, {"cells": []}])
def test_what_is_not_finished_has_not_passed(
    in_folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object]
) -> None:
    """Nor has a report in which no cell ran."""
    file = in_folder / report(in_folder / "a", outcome="pass") / "report.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    assert main(["report", "counts", "a"]) == 0
    assert capsys.readouterr().out.startswith("outcome=unfinished\n")
