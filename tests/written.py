"""A report.json as tests read it: strict JSON, and valid under the schema of the package."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

import pytest_precision.report

SCHEMA = Path(pytest_precision.report.__file__).parent / "schema.json"


def read_report(path: Path | str) -> dict[str, Any]:
    """Read a file; fail if the schema does not describe it to the last key."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    found: dict[str, Any] = json.loads(Path(path).read_text("ascii"), parse_constant=refuse)
    validator().validate(found)
    return found


@cache
def validator() -> Draft202012Validator:
    """The schema without room for keys that it does not name; readers have to ignore those."""
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    closed = {name: _closed(inner) for name, inner in node.items()}
    return {"additionalProperties": False, **closed} if "properties" in node else closed
