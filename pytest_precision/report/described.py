"""Validate the content of a report.json against `schema.json`.

A report may come from another job, and whoever reads it wants to compute with its numbers. This
knows the keywords of JSON Schema that `schema.json` uses, since nothing else of the package needs
a validator.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pytest_precision.errors import expected_but_got
from pytest_precision.parity.plain_data import LARGEST_NUMBER

TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
    "string": lambda value: type(value) is str,
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "integer": lambda value: type(value) is int and -LARGEST_NUMBER <= value <= LARGEST_NUMBER,
    "number": lambda value: (
        type(value) in (int, float) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER
    ),
}


def expect_described(content: Any) -> None:
    """Raise unless the content of a report.json is as its schema describes.

    Raises:
        ValueError: it names the first value that is not as described, and where it is.
    """
    _expect(content, _schema(), "the report")


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(
        Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    )
    return schema


def _expect(value: Any, schema: Mapping[str, Any], where: str) -> None:
    if "$ref" in schema:
        _expect(value, _schema()["$defs"][schema["$ref"].rpartition("/")[2]], where)
    if "anyOf" in schema:
        _expect_any(value, schema["anyOf"], where)
    if "const" in schema and value != schema["const"]:
        raise _value_error(where, f"to be {schema['const']}", value)
    if "enum" in schema and value not in schema["enum"]:
        raise _value_error(where, f"to be one of {', '.join(map(str, schema['enum']))}", value)
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(TYPES[kind](value) for kind in kinds):
            raise _value_error(where, f"to be {' or '.join(kinds)}", value)
    if type(value) in (int, float) and value < schema.get("minimum", -math.inf):
        raise _value_error(where, f"to be at least {schema['minimum']}", value)
    if type(value) is list and "items" in schema:
        for element in value:
            _expect(element, schema["items"], where)
    if type(value) is dict:
        _expect_names(value, schema, where)


def _expect_names(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> None:
    for name in schema.get("required", ()):
        if name not in value:
            raise _value_error(where, f"to have {name}", value)
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for name, field in value.items():
        _expect(
            field,
            properties.get(name, others),
            name if name in properties else f"an entry of {where}",
        )


def _expect_any(value: Any, schemas: list[Mapping[str, Any]], where: str) -> None:
    for number, schema in enumerate(schemas, 1):
        try:
            _expect(value, schema, where)
        except ValueError:
            if number == len(schemas):
                raise
        else:
            break


def _value_error(where: str, expectation: str, value: Any) -> ValueError:
    return ValueError(expected_but_got(f"{where} {expectation}", reprlib.repr(value)))
