"""Rules that every training loop keeps."""

from pytest_precision.registered import GateSpec, ProbeSpec

PROBE = ProbeSpec(
    name="loop_rules",
    loop="pytest_precision.recorders.scripts.rules_probe:rules_probe",
    gates=(GateSpec("pytest_precision.check.side_rules:loop_rules", after="consistent"),),
)
