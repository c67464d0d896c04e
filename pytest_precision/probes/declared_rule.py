"""Updates, held to the optimizer's rule that the workload declares.

The probe of `lost_updates` writes the log that this reads: both look at the same updates.
"""

from pytest_precision.registered import FigureSpec, GateSpec, ProbeSpec

_FINDINGS = "pytest_precision.parity.self_checks.oracle_findings"

PROBE = ProbeSpec(
    name="declared_rule",
    gates=(
        GateSpec("pytest_precision.check.side_rules:declared_rule", after="workload_gradients"),
    ),
    figures=(FigureSpec("oracle", f"{_FINDINGS}:oracle", of_both=True),),
    explains=f"{_FINDINGS}:breaches_explained",
)
