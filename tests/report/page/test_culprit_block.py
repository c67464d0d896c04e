"""The culprit on the page: its source, what it did, what is wrong next, and errors by module."""

from __future__ import annotations

import re

from made_up import culprit
from pages import entry, parse

from pytest_precision.parity.culprit import Following, SourceLine
from pytest_precision.probes.lines.explain.source_lines import lines_around
from pytest_precision.report.page.doc_links import MEANING
from pytest_precision.report.page.failures import MOST_MODULES

HOSTILE = "</script></pre><img src=x onerror=alert(1)>\u202e\x1b[31m{{7*7}}"


def block(make, **changes):
    """The part of the page about the culprit of a failing check."""
    page = parse(make(entry("fail", culprit=culprit(**changes))))
    (found,) = page.all("div", **{"class": "culprit"})
    return found


def cells(table):
    """The texts of a table, row by row."""
    return [[field.text for field in row.children] for row in table.all("tr")]


def test_its_source(make):
    """The lines around it with their numbers, and the one to blame is marked."""
    source, theirs = block(make).all("pre")
    assert source.text == "  68      loss.backward()\n> 69      clip(model, 100)\n"
    assert [mark.text for mark in source.all("mark")] == ["> 69      clip(model, 100)"]
    assert theirs.text == "> 69      clip(model, 0.3)\n"
    labels = [label.text for label in block(make).all("p") if "train.py, " in label.text]
    assert labels == ["candidate: train.py, train", "reference: train.py, train"]


def test_what_git_says_of_it(make):
    """Of two revisions: what was added and what was taken away is told apart."""
    page = parse(make(entry("fail", hunk="@@ -5 +5 @@\n-    loss * 1.0\n+    loss * 0.5")))
    (hunk,) = page.all("pre", **{"class": "hunk"})
    assert [line.text for line in hunk.all("del")] == ["-    loss * 1.0"]
    assert [line.text for line in hunk.all("ins")] == ["+    loss * 0.5"]


def test_what_it_did(make):
    """In one sentence, with its place, the constants of both sides and what its kind means."""
    found = block(make)
    assert found.all("p")[0].text == culprit().text
    facts, constants = found.all("table")[:2]
    assert ["line", "train.py:69"] in cells(facts)
    assert ["reference line", "train.py:69"] in cells(facts)
    assert cells(constants) == [["argument", "candidate", "reference"], ["other", "100.0", "0.3"]]
    (link,) = found.all("a")
    assert (link.text, link.attributes["href"]) == ("constant", f"{MEANING}#kind-constant")


def test_what_is_wrong_next(make):
    """One line each."""
    following = [Following("b", "a.py", 7, "b at a.py:7: x"), Following("c", None, None, "c: y")]
    items = block(make, following=following).all("li")
    assert [item.text for item in items] == ["b at a.py:7: x", "c: y"]


def test_errors_by_module(make):
    """Modules down, forward and backward across; colours divide the errors by their size."""
    rows = [("a", 1e-7, 1e-6), ("b", 1e-3, None), ("c", float("nan"), 0.0), ("d", 1e-5, 1.0)]
    (table,) = block(make, modules=rows).all("table", **{"class": "heat"})
    assert cells(table) == [
        ["module", "forward", "backward"],
        ["a", "1e-07", "1e-06"],
        ["b", "0.001", "."],
        ["c", "nan", "="],
        ["d", "1e-05", "1"],
    ]
    shades = [field.attributes["class"] for field in table.all("td")]
    assert shades == ["heat1", "heat1", "heat3", "unseen", "heat4", "equal", "heat2", "heat4"]


def test_errors_that_are_alike_have_one_colour(make):
    """What rounding makes is about as large everywhere, and no module stands out."""
    rows = [("a", 1e-7, 2e-7), ("b", 1.5e-7, None)]
    (table,) = block(make, modules=rows).all("table", **{"class": "heat"})
    shades = {field.attributes["class"] for field in table.all("td")}
    assert shades == {"heat1", "heat2", "unseen"}


def test_many_modules_are_cut_off(make):
    """The page says how many more there are."""
    found = block(make, modules=[(f"m{n}", 1.0, 1.0) for n in range(MOST_MODULES + 7)])
    (table,) = found.all("table", **{"class": "heat"})
    assert len(table.all("tr")) == MOST_MODULES + 1
    assert "Another 7 modules in report.json." in found.text


def test_installed_code_is_said_to_be_no_file_of_the_project(make):
    """Else it would be looked for there."""
    found = block(make, file="torch/a.py", outside=True)
    facts = cells(found.all("table")[0])
    assert ["line", "torch/a.py:69 (no file of the project)"] in facts


def test_a_report_without_culprit_has_no_block(make):
    """As one of an older release, or of a check that was not looked into."""
    page = parse(make(entry("fail", culprit=None)))
    assert page.all("details", **{"class": "failure"})
    assert not page.all("div", **{"class": "culprit"})


def test_hostile_source_is_inert(make, tmp_path):
    """Whatever a file is made of: markup, control characters, bytes that are no text, length."""
    file = tmp_path / "odd.py"
    long = b"x" * 10_000
    file.write_bytes(b"\n".join([HOSTILE.encode(), b"\xff\xfe\x00", b"bad()", long]) + b"\n")
    names = dict.fromkeys(("text", "operation", "function", "file", "module"), HOSTILE)
    constants = {side: {HOSTILE: HOSTILE} for side in ("candidate", "reference")}
    path = make(
        entry(
            "fail",
            culprit=culprit(
                source=lines_around(str(file), 3),
                line=3,
                constants=constants,
                following=[Following(HOSTILE, HOSTILE, 1, HOSTILE)],
                modules=[(HOSTILE, 1.0, None)],
                **names,
            ),
        )
    )
    page = parse(path)
    source, _ = page.all("pre", **{"class": "source"})
    lines = source.text.splitlines()
    assert lines[0].endswith("\\u202e\\x1b[31m{{7*7}}")
    assert lines[1].endswith("\ufffd\ufffd\\x00")
    assert lines[2] == "> 3  bad()"
    assert len(lines[3]) < 300
    assert not page.all("img")
    assert len(page.all("script")) == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", path.read_text("utf-8"))
    assert str(tmp_path) not in path.read_text("utf-8")


def test_lines_have_the_width_of_the_largest_number(make):
    """So that the code stays in one column."""
    source = (SourceLine(99, "a"), SourceLine(100, "b"))
    found, _ = block(make, source=source, line=100).all("pre")
    assert found.text == "   99  a\n> 100  b\n"
