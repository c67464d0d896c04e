"""Losses and gradients, held to the workload's own model and loss."""

from pytest_precision.registered import GateSpec, ProbeSpec

_FINDINGS = "pytest_precision.probes.gradients.gradient_findings"

PROBE = ProbeSpec(
    name="gradients",
    engine="pytest_precision.probes.gradients.gradient_probe:gradient_probe",
    gates=(GateSpec(f"{_FINDINGS}:workload_gradients", after="loop_rules"),),
    explains=f"{_FINDINGS}:gradients_explained",
    blames=f"{_FINDINGS}:wrong_alone",
)
