"""Summary: Markdown that fits, and that text of others cannot change."""

from __future__ import annotations

from made_up import cell, culprit, matrix

from pytest_precision.report.read import Report
from pytest_precision.report.summary import markdown_summary


def report(*cells, finished=True):
    """A report of some cells."""
    return Report(finished, len(cells), 75.0, {}, tuple(cells))


def failing(number, reason="why"):
    """A failing cell with a reason of its own."""
    entry = {"axes": {}, "reason": reason, "repeat": "pytest x"}
    return cell("fail", {"seed": number}, reason=reason, number=number, entry=entry)


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
    assert f"<pre>F why\n  {culprit().text}\n  test_moe.py::test_experts[]\n  pytest x" in text


def test_text_of_others_stays_in_its_box():
    """Neither Markdown nor HTML in a reason ends the box that it stands in."""
    text = markdown_summary(report(failing(0, "</pre># **x** <img src=y>\x1b[31m")))
    assert "&lt;/pre&gt;# **x** &lt;img src=y&gt;\\x1b[31m" in text
    assert text.count("<pre>") == text.count("</pre>")


def test_it_is_cut_after_a_whole_section():
    """GitHub drops what is too long as a whole; the text says what is missing."""
    cells = [failing(number, f"reason {number} " + "é" * 50) for number in range(50)]
    text = markdown_summary(report(*cells), most=2000)
    assert 1000 < len(text.encode()) <= 2000
    assert text.count("<pre>") == text.count("</pre>")
    assert text.endswith(" more sections did not fit here.\n")
