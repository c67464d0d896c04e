"""The gates of a check, in the order in which they are asked; the core's, and those of judgements.

Their order is that of the causes: on other data no layout is to blame, and what proves nothing
matters only where both sides agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_precision._usage import usage_error
from pytest_precision.errors import PluginFailed, expected_but_got
from pytest_precision.parity.verdict import Ruling
from pytest_precision.registered import (
    GateSpec,
    ProbeSpec,
    Registered,
    is_of_package,
    reference_path,
    resolved,
)

if TYPE_CHECKING:
    from pytest_precision.check.case import Case

_GATES = "pytest_precision.check.gates"

CORE_GATES = (
    GateSpec(f"{_GATES}:same_data"),
    GateSpec(f"{_GATES}:agreement", of_recordings=True, of_two_sides=True),
    GateSpec(f"{_GATES}:undisturbed"),
    GateSpec(f"{_GATES}:contract", of_recordings=True),
    GateSpec(f"{_GATES}:vacuity", of_recordings=True),
    GateSpec(f"{_GATES}:hidden_kinds", of_recordings=True, of_two_sides=True),
    GateSpec(f"{_GATES}:compared", of_recordings=True, of_two_sides=True),
    GateSpec(f"{_GATES}:known_kinds", of_recordings=True, of_two_sides=True),
    GateSpec(f"{_GATES}:tolerances", of_recordings=True, of_two_sides=True),
)
"""The gates of each cell, in order; those of judgements have their places between them."""

REFUSALS = ("fail", "vacuous", "error")
"""The outcomes that a gate may give: it refuses a cell, and passes none."""


@dataclass(frozen=True)
class PlacedGate:
    """A gate in the order, with the judgement that brings it; None for one of the core."""

    spec: GateSpec
    probe: ProbeSpec | None = None

    def __call__(self, case: Case) -> Ruling | None:
        """Ask the gate; one of another plugin that raises makes the cell an error."""
        function = resolved(self.spec.function, self.probe or "the core")
        try:
            ruling: Ruling | None = function(case)
        except PluginFailed as failed:
            reason, details = str(failed), tuple(failed.details)
            return Ruling(outcome="error", reason=reason, gate=self.spec.name, details=details)
        if ruling is None or is_of_package(self.spec.function):
            return ruling
        if not isinstance(ruling, Ruling) or ruling.outcome not in REFUSALS:
            expected = f"{self.probe} to give a Ruling that is {' or '.join(REFUSALS)}, or None"
            got = f"{ruling!r} from {reference_path(self.spec.function)}"
            reason = expected_but_got(expected, got)
            return Ruling(outcome="error", reason=reason, gate=self.spec.name)
        return replace(ruling, gate=self.spec.name)


def ordered_gates(probes: Iterable[ProbeSpec]) -> list[PlacedGate]:
    """Return the gates of the core and of judgements, in the order in which they are asked.

    Raises:
        pytest.UsageError: two have one name, or one names a place that there is not.
    """
    followers: dict[str, list[PlacedGate]] = defaultdict(list)
    names = [spec.name for spec in CORE_GATES]
    for probe in probes:
        for spec in probe.gates:
            if spec.name in names:
                got = f"{spec.name!r} of {probe} again"
                raise usage_error()(expected_but_got("one gate of each name", got, "rename it"))
            names.append(spec.name)
            followers[spec.after].append(PlacedGate(spec, probe))
    ordered_gates: list[PlacedGate] = []
    for gate in [*map(PlacedGate, CORE_GATES), *followers[""]]:
        ordered_gates += _with_followers(gate, followers)
    for gate in (gate for several in followers.values() for gate in several):
        if gate not in ordered_gates:
            places = ", ".join(placed_gate.spec.name for placed_gate in ordered_gates)
            expected, got = f"{gate.probe} to have its gate after one of {places},", gate.spec.after
            raise usage_error()(expected_but_got(expected, f"after={got!r} of {gate.spec.name}"))
    return ordered_gates


def _with_followers(
    gate: PlacedGate, followers: dict[str, list[PlacedGate]]
) -> Iterator[PlacedGate]:
    yield gate
    for follower in followers[gate.spec.name]:
        yield from _with_followers(follower, followers)


def gates_of(
    registered: Registered, *, bare: bool = False, alone: bool = False, recordings: bool = False
) -> list[PlacedGate]:
    """Return the gates of a check, in order.

    Args:
        registered: the judgements of the session.
        bare: whether it is one of a bare cell.
        alone: whether a layout is compared with further runs of itself.
        recordings: whether two recordings are compared that were made elsewhere.
    """
    probes = registered.of(bare=bare)
    return [
        gate
        for gate in ordered_gates(registered.probes)
        if (gate.probe is None or gate.probe in probes)
        and not (alone and gate.spec.of_two_sides)
        and (gate.spec.of_recordings or not recordings)
    ]
