"""Races: bits that change when a rank is late."""

from pytest_precision.registered import GateSpec, ProbeSpec

PROBE = ProbeSpec(
    name="races",
    gates=(GateSpec("pytest_precision.probes.races.late_ranks:races"),),
    in_bare=True,
)
