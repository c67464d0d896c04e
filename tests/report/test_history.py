"""One strip a cell, over several reports: what is new, fixed, flaky, slower or gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import cell
from pages import parse
from test_changed_cells import GREEN, write
from test_summary import report

from pytest_precision.__main__ import main
from pytest_precision.report.json_file import JsonFile
from pytest_precision.report.past_reports import histories, history_lines
from pytest_precision.report.provenance import environment

SIGNS = {".": "pass", "F": "fail"}


def reports_of(strips: list[str]):
    """Reports in which each cell ended as its strip says; a blank is none."""
    return [
        report(
            *(
                cell(SIGNS[strip[number]], {}, test=f"test_it.py::test_{k}")
                for k, strip in enumerate(strips)
                if strip[number] != " "
            )
        )
        for number in range(len(strips[0]))
    ]


@pytest.mark.parametrize(
    ("strip", "word"),
    [
        ("...", ""),
        ("..F", "new"),
        ("  F", "new"),
        ("FFF", "failing"),
        ("FF.", "fixed"),
        (".F.", "flaky"),
        ("F F", "failing"),
        ("F.F", "flaky"),
        ("FF ", "gone"),
        (".. ", ""),
    ],
)
def test_a_cell_has_a_word(strip: str, word: str) -> None:
    """By its changes, of those reports that have it."""
    (history,) = histories(reports_of([strip]))
    assert (history.strip, history.word) == (strip, word)


def test_a_cell_is_slower_than_usual() -> None:
    """Than the median of the earlier ones, by half and by a second."""
    cells = [replace(cell("pass", {}), seconds=seconds) for seconds in (1.0, 9.0, 1.2, 3.0)]
    assert [h.word for h in histories([report(one) for one in cells])] == ["slower"]
    assert [h.word for h in histories([report(one) for one in (*cells[:3], cells[0])])] == [""]


def test_lines_count_and_list_what_changed() -> None:
    """Reports first, then the numbers, then the cells: what moves to and fro, then what is new."""
    lines = [*history_lines(reports_of(["...", "..F", "F.F"]), ["a", "b", "c"])]
    assert [line[:4] for line in lines[:3]] == ["1  a", "2  b", "3  c"]
    assert lines[4] == "1 flaky, 1 new, 1 as ever"
    assert [line.split() for line in lines[5:]] == [
        ["F.F", "flaky", "test_it.py::test_2[]"],
        ["..F", "new", "test_it.py::test_1[]"],
    ]


def test_the_command_reads_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the command line."""
    for name in ("old", "new"):
        JsonFile(tmp_path / name, environment(device="cpu", flags={})).close()
    assert main(["report", "history", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    first, second, _, counts = capsys.readouterr().out.splitlines()
    assert first.startswith(f"1  {tmp_path / 'old'}: ")
    assert second.startswith(f"2  {tmp_path / 'new'}: ")
    assert counts == "0 as ever"


def test_the_page_has_a_strip_for_each_cell_that_changed(tmp_path: Path) -> None:
    """Of several earlier reports; of one, the page says what has changed since."""
    folders = [
        write(tmp_path / "first", one=GREEN, two=GREEN, three={}),
        write(tmp_path / "second", one=GREEN, two=GREEN, three=GREEN),
        write(tmp_path / "third", one=GREEN, two={}, three={}),
    ]
    since = ["--since", folders[0], "--since", folders[1]]
    assert main(["report", "html", *since, folders[2]]) == 0
    page = parse(tmp_path / "third" / "report.html")
    (section,) = page.all("section", **{"aria-labelledby": "history"})
    assert section.all("h2")[0].text == "History: 1 flaky, 1 new, 1 as ever"
    rows = [[field.text for field in row.children] for row in section.all("tr")[1:]]
    assert rows == [
        ["F.F", "flaky", "test_it.py::test_it[three]"],
        ["..F", "new", "test_it.py::test_it[two]"],
    ]
    strip = section.all("td", **{"class": "strip"})[0]
    assert strip.attributes["aria-label"] == "failed, passed, failed"
    assert main(["report", "html", *since[2:], folders[2]]) == 0
    page = parse(tmp_path / "third" / "report.html")
    assert not page.all("section", **{"aria-labelledby": "history"})
