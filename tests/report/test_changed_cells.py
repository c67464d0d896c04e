"""Two reports of one matrix, an earlier and a later one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pages import parse

from pytest_precision.__main__ import main

GREEN = {"outcome": "pass", "reason": ""}


def write(folder: Path, *, finished: bool = True, **cells: dict[str, Any]) -> str:
    """Write a report; return its folder. Cells differ from a red one of half a second as given."""
    entries = []
    for name, changes in cells.items():
        entry: dict[str, Any] = dict.fromkeys(("candidate", "reference", "workload"), "x")
        entry |= {"nodeid": f"test_it.py::test_it[{name}]", "axes": {"mine": name}}
        entry |= {"criterion": "bitwise", "outcome": "fail", "reason": "param differs"}
        entry |= {"observations": 1, "bytes": 4, "seconds": 0.5, "details": []}
        entries.append(entry | changes)
    head = {"schema": 1, "finished": finished, "planned": len(cells), "environment": {}}
    head["environment"] = {"world_sizes": [1]}
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(head | {"cells": entries}))
    return str(folder)


def test_each_cell_is_new_known_fixed_gone_or_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure for another reason is new; a cell that passes is told only if it is slower."""
    before = write(
        tmp_path / "old",
        known={},
        other={},
        fixed={},
        skipped={},
        gone={},
        broken=GREEN,
        slow=GREEN | {"seconds": 2.0},
        quick=GREEN | {"seconds": 0.1},
        steady=GREEN | {"seconds": 10.0},
    )
    after = write(
        tmp_path / "new",
        known={},
        other={"reason": "loss differs"},
        fixed=GREEN,
        skipped={"outcome": "skip", "reason": "no GPU"},
        broken={},
        added={},
        slow=GREEN | {"seconds": 4.0},
        quick=GREEN | {"seconds": 0.9},
        steady=GREEN | {"seconds": 14.0},
    )
    assert main(["report", "compare", before, after]) == 1
    head, *sections = capsys.readouterr().out.split("\n###")
    assert "3 new, 1 known, 1 fixed, 1 slower" in head
    told = {text.partition("\n")[0].strip(): text for text in sections}
    assert [*told] == [
        "New failures",
        "Known failures",
        "Fixed",
        "Failed, and did not run now",
        "Slower",
    ]
    assert "loss differs" in told["New failures"]
    assert "[broken] and 1 more" in told["New failures"]
    assert "[known]" in told["Known failures"]
    assert told["Fixed"].count("test_it[") == 1
    assert "[fixed]" in told["Fixed"]
    gone = told["Failed, and did not run now"]
    assert [name in gone for name in ("[gone]", "[skipped]", "[known]")] == [True, True, False]
    assert told["Slower"].count("test_it[") == 1
    assert "2.0 s -&gt; 4.0 s  test_it.py::test_it[slow]" in told["Slower"]


def test_known_failures_alone_are_status_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a job goes red for what is new; a report that was cut short says so."""
    before = write(tmp_path / "old", one={}, two=GREEN)
    after = write(tmp_path / "new", finished=False, one={})
    assert main(["report", "compare", before, after]) == 0
    said = capsys.readouterr().out
    assert "0 new, 1 known, 0 fixed, 0 slower" in said
    assert "**Not finished:**" in said


def test_page_and_summary_say_what_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before all else, and only if there is an earlier report."""
    before = write(tmp_path / "old", one={}, two=GREEN, three={})
    after = write(tmp_path / "new", one={}, two={}, three=GREEN)
    assert main(["report", "summary", "--since", before, after]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "## Precision matrix since the last report: 1 new, 1 known, 1 fixed, 0 s"
    )
    assert "\n## Precision matrix: 2 of 3 cells failed\n" in said
    assert main(["report", "html", "--since", before, after]) == 0
    page = parse(tmp_path / "new" / "report.html")
    heads = [head.text for head in page.all("h2")]
    assert heads[0] == "Since the last report: 1 new, 1 known, 1 fixed, 0 slower"
    (since,) = (one for one in page.all("section") if one.all("h2")[0].text == heads[0])
    groups = [
        (d.all("summary")[0].text, [li.text for li in d.all("li")]) for d in since.all("details")
    ]
    assert groups == [
        ("New failures: 1", ["test_it.py::test_it[two]"]),
        ("Known failures: 1", ["test_it.py::test_it[one]"]),
        ("Fixed: 1", ["test_it.py::test_it[three]"]),
    ]
    assert main(["report", "html", after]) == 0
    assert "Since the last report" not in (tmp_path / "new" / "report.html").read_text()


def test_a_file_that_is_no_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its name."""
    with pytest.raises(SystemExit, match="2"):
        main(["report", "compare", str(tmp_path), write(tmp_path / "new", one={})])
    assert f"expected a report.json but got {tmp_path}" in capsys.readouterr().err
