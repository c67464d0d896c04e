"""Annotations: as many as GitHub shows, each one line that cannot be another command."""

from __future__ import annotations

from made_up import cell, culprit
from test_summary import failing, report

from pytest_precision.report.annotations import workflow_commands


def test_one_per_reason():
    """At the line of the test, with the number of cells."""
    assert workflow_commands(report(failing(0), failing(1))) == [
        "::error file=test_moe.py,line=2,title=2x test_experts::"
        "why%0Atest_moe.py::test_experts[0] and 1 more"
    ]


def test_at_the_line_of_the_culprit():
    """Where the wrong value was made, not where it was noticed, with what was done there."""
    own = {"axes": {}, "reason": "why", "culprit": culprit().as_dict()}
    (found,) = workflow_commands(report(cell("fail", {}, reason="why", entry=own)))
    place, _, text = found.partition("test_experts::")
    assert place == "::error file=train.py,line=69,title="
    assert text == f"why%0A{culprit().text}%0Atest_moe.py::test_experts[]"


def test_a_comparison_of_recordings_is_at_its_script():
    """Its name on the command line is no file, and a service would refuse it."""
    own = {"axes": {}, "reason": "why", "recorded": {"candidate": {"script": "src/train.py"}}}
    (found,) = workflow_commands(report(cell("fail", {}, test="a2 against a", entry=own)))
    assert found.startswith("::error file=src/train.py,line=1,title=a2 against a::")


def test_at_most_ten():
    """The last one counts the others."""
    found = workflow_commands(report(*(failing(n, f"reason {n}") for n in range(25))))
    assert len(found) == 10
    assert found[-1].endswith("::16 more reasons to fail: see report.html")
    assert len(workflow_commands(report(*(failing(n, f"reason {n}") for n in range(10))))) == 10


def test_an_unfinished_report_is_an_error():
    """Also where every cell that ran passed."""
    assert workflow_commands(report(finished=False)) == [
        "::error title=precision matrix::not finished: 0 cells of 0 ran"
    ]


def test_text_of_others_is_no_command():
    """Line ends, and what ends a property, are escaped."""
    (found,) = workflow_commands(report(failing(0, "100 %\r\n::set-env name=x::y")))
    assert "\n" not in found
    assert "::100 %25\\r%0A\\x3a:set-env name=x::y%0A" in found
