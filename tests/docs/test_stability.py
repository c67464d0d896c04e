"""What docs/reference/stability.md promises: names that readers rely on are never taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

from pytest_precision.check.failed_check import FAILURES
from pytest_precision.check.gate_order import ordered_gates
from pytest_precision.check.preconditions import PRECONDITIONS
from pytest_precision.check.repeat import repeats
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.kinds import KINDS
from pytest_precision.probes.baselines.kept_check import golden
from pytest_precision.probes.then.moved import TIME_GATES
from pytest_precision.registered import OF_PACKAGE
from pytest_precision.report.status import STATUSES
from pytest_precision.rollout.batch_invariance import batch_invariant
from pytest_precision.rollout.score_gates import STEPS

PROMISED = Path(__file__).with_name("promised.json")
"""Name of a promise to its names, sorted: new ones are added, none is removed or renamed."""

FORMER_GATES = {"noticed"}
"""Those that refuse nothing any more, whose names mean nothing else."""

SCHEMA = ROOT / "pytest_precision" / "report" / "schema.json"


def keys(node: Any, place: str = "report") -> Iterator[str]:
    """Yield each key of a schema by its place, and each value that a key may have."""
    if isinstance(node, list):
        for inner in node:
            yield from keys(inner, place)
    elif isinstance(node, dict):
        yield from (f"{place}={value}" for value in node.get("enum", ()))
        for name, inner in node.items():
            if name in ("properties", "$defs"):
                yield from (f"{place}.{key}" for key in inner)
                for key, below in inner.items():
                    yield from keys(below, f"{place}.{key}" if name == "properties" else key)
            elif name != "enum":
                yield from keys(inner, place)


def there() -> dict[str, set[str]]:
    """Return the names that there are now, by promise."""
    gates = (*PRECONDITIONS, *FAILURES.values(), *TIME_GATES, repeats, golden, *STEPS)
    gates = (*gates, batch_invariant)
    asked = {gate.spec.name for gate in ordered_gates(OF_PACKAGE.probes)}
    return {
        "gates": {gate.__name__ for gate in gates} | asked | FORMER_GATES,
        "kinds": {*KINDS},
        "phases": {*STEP_PHASES},
        "report": {*keys(json.loads(SCHEMA.read_text()))},
        "statuses": {*STATUSES},
    }


@pytest.mark.parametrize("promise", there())
def test_no_name_is_taken_away(promise: str) -> None:
    """A name that is new is promised from then on, so it has to be in the list as well."""
    promised, names = json.loads(PROMISED.read_text())[promise], there()[promise]
    assert {*promised} - names == set(), "readers rely on these names"
    assert sorted(names) == promised, f"add what is new to {PROMISED.name}"


def test_a_key_has_a_place() -> None:
    """One that is moved, or of which a value goes, is missed."""
    inner = {"type": "object", "properties": {"b": {"enum": ["c", "d"]}}}
    schema = {"properties": {"a": {"items": inner}}, "$defs": {"e": inner}}
    assert [*keys(schema)] == [
        *("report.a", "report.a.b", "report.a.b=c", "report.a.b=d"),
        *("report.e", "e.b", "e.b=c", "e.b=d"),
    ]
