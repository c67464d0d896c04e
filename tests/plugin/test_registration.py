"""Judgements that plugins register: their order, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_precision.check.case import Case
from pytest_precision.check.gate_order import PlacedGate, ordered_gates
from pytest_precision.parity.verdict import Ruling
from pytest_precision.registered import (
    OF_PACKAGE,
    GateSpec,
    ProbeSpec,
    Registered,
    expect_specs,
)


def a_gate(case: object) -> None:
    """A gate of a plugin."""


def names(*probes: ProbeSpec) -> list[str]:
    """The gates of the package's judgements and of others, in order."""
    return [gate.spec.name for gate in ordered_gates([*OF_PACKAGE.probes, *probes])]


@pytest.mark.parametrize(
    ("after", "before"), [("", "races"), ("vacuity", "lost_updates"), ("same_data", "same_data")]
)
def test_a_gate_stands_where_it_says(after: str, before: str) -> None:
    """After the gate that it names and those which already follow that, or last."""
    ordered = names(ProbeSpec(name="mine", gates=[GateSpec(a_gate, after=after)]))
    assert ordered[ordered.index("a_gate") - 1] == before


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (ProbeSpec(name="mine", gates=[GateSpec(a_gate, after="nowhere")]), "after='nowhere'"),
        (ProbeSpec(name="mine", gates=[GateSpec("plugin:races")]), "one gate of each name"),
    ],
)
def test_a_gate_without_a_place_of_its_own_is_refused(probe: ProbeSpec, message: str) -> None:
    """As a wrong option is."""
    with pytest.raises(pytest.UsageError, match=message):
        names(probe)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[ProbeSpec(name="a")], ProbeSpec(name="a")], "one ProbeSpec of each name"),
        ([a_gate], "a ProbeSpec, several, or None from a plugin but got <function a_gate"),
    ],
)
def test_what_is_no_judgement_is_refused(returned: list[object], message: str) -> None:
    """What a plugin returns is read when a session has cells."""
    with pytest.raises(pytest.UsageError, match=message):
        expect_specs(returned, ProbeSpec)


def raises(case: object) -> None:
    """A gate of a plugin with a mistake."""
    raise KeyError("loss")


def passes(case: object) -> Ruling:
    """A gate of a plugin that would pass a cell."""
    return Ruling()


def talks(case: object) -> str:
    """A gate of a plugin that returns no ruling."""
    return "fine"


@pytest.mark.parametrize("function", [raises, passes, talks])
def test_a_gate_that_does_not_rule_is_an_error(function: Callable[[object], object]) -> None:
    """Of the cell, with the name of the gate and of its judgement; never a pass."""
    ruling = PlacedGate(GateSpec(function), ProbeSpec(name="mine"))(Case)  # type: ignore[arg-type]
    assert ruling is not None
    assert (ruling.outcome, ruling.gate) == ("error", function.__name__)
    assert "the judgement 'mine'" in ruling.reason


def test_a_bare_cell_has_what_says_so() -> None:
    """A judgement of a plugin is off in a bare cell, unless it says otherwise."""
    probes = [ProbeSpec(name="full"), ProbeSpec(name="always", in_bare=True)]
    registered = Registered(lambda: [probes, None])
    assert registered.of(bare=False) == probes
    assert registered.of(bare=True) == probes[1:]
