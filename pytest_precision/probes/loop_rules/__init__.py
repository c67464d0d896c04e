"""Rules that every training loop keeps."""

from pytest_precision.registered import GateSpec, ProbeSpec

PROBE = ProbeSpec(
    name="loop_rules",
    loop="pytest_precision.probes.loop_rules.rules_probe:rules_probe",
    gates=(
        GateSpec("pytest_precision.probes.loop_rules.refused_loops:loop_rules", after="consistent"),
    ),
)
