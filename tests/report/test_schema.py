"""The schema of report.json, which the wheel has: it describes all that is written."""

from __future__ import annotations

import copy
import json

import pytest
from jsonschema import ValidationError
from made_up import culprit, divergence, verdict
from written import SCHEMA, read_report, validator

from pytest_precision.parity.figures import DEFAULT_FIGURES
from pytest_precision.parity.verdict import FACTS, FINDINGS
from pytest_precision.report.json_file import JsonFile
from pytest_precision.report.provenance import environment

OF_THE_TEST = {
    *("pytest", "xfail", "number", "line", "worker", "test_seconds", "reruns", "unread"),
}
"""What the report adds to a verdict."""


FORMER = {"mutants"}
"""Keys that are no longer written, and mean nothing else."""


def test_each_figure_has_its_piece_and_none_more() -> None:
    """A figure of a verdict is a key of report.json, and readers learn what it holds."""
    described = json.loads(SCHEMA.read_text())["$defs"]["check"]["properties"]
    assert described.keys() - OF_THE_TEST - FORMER - {*FACTS, *FINDINGS} == DEFAULT_FIGURES.keys()


@pytest.fixture
def report(tmp_path):
    """A report of one failing check."""
    file = JsonFile(tmp_path, environment(device="cpu", flags={}))
    sides = {"candidate": {"torch": "2.13"}, "reference": {"torch": "2.12"}}
    file.put(
        "a", [verdict("fail", "why", divergence=divergence(), culprit=culprit(), environment=sides)]
    )
    file.close()
    return read_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), 2),
        (("planned",), "7"),
        (("cells", 0, "outcome"), "failed"),
        (("cells", 0, "invented"), 1),
        (("cells", 0, "divergence", "ulp"), "1"),
        (("cells", 0, "culprit", "kind"), "odd"),
        (("cells", 0, "culprit", "line"), "69"),
        (("cells", 0, "culprit", "source", 0, "text"), None),
        (("cells", 0, "culprit", "constants", "candidate", "other"), {}),
        (("cells", 0, "environment", "candidate", "torch"), None),
        (("environment", "ranks", 0, "torch"), None),
    ],
)
def test_what_is_not_described_is_refused(report, place, value):
    """The validation of the tests can fail, at every depth."""
    changed = copy.deepcopy(report)
    *way, last = place
    inner = changed
    for name in way:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(ValidationError):
        validator().validate(changed)
