"""Culprit: what it says stands below the first line, and report.json has it as data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from made_up import culprit, verdict
from written import SCHEMA, validator

from pytest_precision import Verdict
from pytest_precision.parity.culprit import BOTH_SIDES, CULPRIT_KINDS, CalledAt, Culprit
from pytest_precision.parity.verdict import MORE, Ruling
from pytest_precision.report.json_file import encode


def test_its_line_is_the_second_one_of_a_failure() -> None:
    """The first line says which tensor differs, the next one where that was made, by which code."""
    found = culprit()
    assert found.reference is not None
    ruling = Ruling(
        outcome="fail", reason="param differs", culprit=found, brief=("table",), details=("more",)
    )
    sides = {"candidate": "a:f", "reference": "a:g", "workload": "", "criterion": "bitwise"}
    failed = Verdict(nodeid="t.py::t[x]", axes={}, ruling=ruling, **sides)
    assert failed.culprit is found
    assert failed.details[0] == f"  {found.text}"
    assert failed.brief == (
        f"  {found.text}",
        "    candidate  clip(model, 100)",
        f"    reference  {found.reference.source[0].text.strip()}",
        "  table",
        "  ",
        f"  Repeat with: {failed.repeat}",
        f"  {MORE}",
    )


def test_what_one_side_shows_by_itself_stands_before_it() -> None:
    """A stale copy is the cause of the first wrong value, of which the next line speaks."""
    found = replace(culprit(), reference=None)
    ruling = Ruling(
        outcome="fail", reason="r", explained=("In the candidate, w is stale",), culprit=found
    )
    sides = {"candidate": "a:f", "reference": "a:g", "workload": "", "criterion": "bitwise"}
    first, second, third, *_ = Verdict(nodeid="t[x]", axes={}, ruling=ruling, **sides).details
    assert first == "  In the candidate, w is stale"
    assert second == f"  {found.text}"
    assert third == "    code       clip(model, 100)"


def test_nothing_is_said_without_one() -> None:
    """A verdict that knows no line is what it was: no key in report.json, no empty line."""
    failed = verdict("fail", "why", details=("more",))
    assert "culprit" not in failed
    assert failed["details"][0] == "  candidate  layouts:grouped"


def test_it_is_written_and_read() -> None:
    """What report.json has of it is strict JSON, as the schema says, and gives it back."""
    found = culprit()
    entry = json.loads(encode(verdict("fail", "why", culprit=found)))
    report = {"schema": 1, "finished": True, "planned": 1, "environment": {"world_sizes": []}}
    validator().validate(report | {"cells": [entry]})
    assert Culprit.of(entry["culprit"] | {"of_a_later_release": 1}) == found


def test_numbers_that_json_lacks_are_read_as_numbers() -> None:
    """The error of a module may be infinite or none."""
    data = json.loads(encode(culprit(modules=[("a", float("inf"), None)]).as_dict()))
    assert data["modules"] == [{"module": "a", "forward": "inf", "backward": None}]
    assert Culprit.of(data).modules[0].forward == float("inf")


def test_what_is_unknown_is_left_out() -> None:
    """The least that is known of one: its text, its kind, its operation."""
    least = Culprit(text="why", kind="unknown", operation="aten.mul.Tensor")
    written = {"text": "why", "kind": "unknown", "operation": "aten.mul.Tensor", "outside": False}
    assert least.as_dict() == written
    assert Culprit.of(written) == least
    assert least.where == ""


def test_constants_are_builtins() -> None:
    """Anything else on a report ends a whole xdist run: a dtype is its text, a list stays one."""
    sides = {side: {"dtype": torch.bfloat16, "size": (2, torch.Size([3]))} for side in BOTH_SIDES}
    found = culprit(constants=sides).as_dict()["constants"]
    assert found["candidate"] == {"dtype": "torch.bfloat16", "size": [2, [3]]}


def test_a_kind_that_is_none_is_refused() -> None:
    """By the list of those that there are."""
    with pytest.raises(ValueError, match="constant, missing, extra"):
        Culprit(text="why", kind="odd", operation="aten.mul.Tensor")


def test_the_schema_has_the_kinds() -> None:
    """All of them, in their order, and a key for each field."""
    described = json.loads(SCHEMA.read_text())["$defs"]["culprit"]["properties"]
    assert described["kind"]["enum"] == [*CULPRIT_KINDS]
    assert set(culprit().as_dict()) == set(described)
    assert set(CalledAt._fields) == set(described["reference"]["properties"])
