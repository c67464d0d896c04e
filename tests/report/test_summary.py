"""Summary: Markdown that fits, and that text of others cannot change."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from made_up import cell, culprit, divergence, matrix

from pytest_precision.report.page.doc_links import of_kind
from pytest_precision.report.read import Report
from pytest_precision.report.summary import markdown_summary


def report(*cells, finished=True):
    """A report of some cells."""
    return Report(finished, len(cells), 75.0, {}, tuple(cells))


def failing(number, reason="why"):
    """A failing cell with a reason of its own."""
    entry = {"axes": {}, "reason": reason, "repeat": "pytest x"}
    return cell("fail", {"seed": number}, reason=reason, number=number, entry=entry)


def assert_whole(text):
    """Each block is closed, and stands for itself."""
    for name in ("pre", "table", "tr", "td"):
        assert text.count(f"<{name}>") == text.count(f"</{name}>"), name


def test_what_it_says():
    """Verdict, counts, what failing cells share, reasons with the command, grids."""
    cells = matrix(lambda a: "fail" if a["w"] == 2 else "pass", w=[1, 2, 3], seed=[0, 1])
    text = markdown_summary(report(*cells, finished=False))
    assert text.startswith(
        "## Precision matrix: 2 of 6 cells failed\n\n2 failed, 4 passed in 75 s."
    )
    assert "**Not finished:** 6 cells of 6 ran." in text
    assert "<pre>both failing cells have w=2; no passing cell has</pre>" in text
    assert "seed\n  0     .  F  .\n  1     .  F  ." in text


def test_the_culprit_stands_below_its_reason():
    """As in the terminal, before the cell and the command that repeats it."""
    own = {"axes": {}, "reason": "why", "repeat": "pytest x", "culprit": culprit().as_dict()}
    text = markdown_summary(report(cell("fail", {}, reason="why", entry=own)))
    told = f"<b>why</b><br>{culprit().text}<br>test_moe.py::test_experts[]<br><code>pytest x</code>"
    assert told in text


JOB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "a/b",
    "GITHUB_RUN_ID": "7",
}


@pytest.mark.parametrize("name", [None, *JOB])
def test_links_of_a_job(monkeypatch, name):
    """To the line at the commit of the report, to where to look, and to the page; else a name."""
    for variable, value in JOB.items():
        monkeypatch.setenv(variable, value)
    if name:
        monkeypatch.delenv(name)
    own = {"axes": {}, "reason": "why", "culprit": culprit().as_dict()}
    own["divergence"] = asdict(divergence())
    commit = {"runs": [{"date": "2026", "commit": "12ab"}]}
    found = report(cell("fail", {}, reason="why", entry=own))
    text = markdown_summary(replace(found, environment=commit))
    place = '<a href="https://github.com/a/b/blob/12ab/train.py#L69">train.py:69</a>'
    assert (place in text) == (name is None)
    assert ("https://github.com/a/b/actions/runs/7#artifacts" in text) == (name is None)
    assert "train.py:69" in text
    assert f'<a href="{of_kind("param")}">where to look</a>' in text
    assert "<td>param, step 2</td>" in text


def test_text_of_others_stays_in_its_box():
    """Neither Markdown nor HTML in a reason ends the box that it stands in."""
    text = markdown_summary(report(failing(0, "</pre># **x** <img src=y>\x1b[31m")))
    assert "&lt;/pre&gt;# **x** &lt;img src=y&gt;\\x1b[31m" in text
    assert_whole(text)


def test_no_text_of_others_ends_a_table():
    """An empty line would: what follows it is Markdown again."""
    text = markdown_summary(report(failing(0, "one\n\n# two"), failing(1, "</td></table>")))
    table = text.partition("<table>")[2].partition("</table>")[0]
    assert "\n\n" not in table
    assert table.count("<tr>") == 3
    assert_whole(text)


def test_it_is_cut_after_a_whole_section():
    """GitHub drops what is too long as a whole; the text says what is missing."""
    cells = [failing(number, f"reason {number} " + "é" * 50) for number in range(50)]
    text = markdown_summary(report(*cells), most=2000)
    assert 1000 < len(text.encode()) <= 2000
    assert_whole(text)
    assert text.endswith(" more sections did not fit here.\n")


def test_a_difference_at_the_start_is_of_no_step():
    """As of a learning rate, which differs before anything is trained."""
    own = {"axes": {}, "reason": "why", "divergence": asdict(divergence(kind="lr", step=0))}
    text = markdown_summary(report(cell("fail", {}, reason="why", entry=own)))
    assert "<td>lr, before the first step</td>" in text
