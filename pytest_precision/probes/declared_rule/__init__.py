"""Updates, held to the optimizer's rule that the workload declares.

The probe of `lost_updates` writes the log that this reads: both look at the same updates.
"""

from pytest_precision.registered import FigureSpec, GateSpec, ProbeSpec

_FINDINGS = "pytest_precision.probes.declared_rule.oracle_findings"

PROBE = ProbeSpec(
    name="declared_rule",
    gates=(GateSpec(f"{_FINDINGS}:declared_rule", after="workload_gradients"),),
    figures=(FigureSpec("oracle", f"{_FINDINGS}:oracle", of_both=True),),
    explains=f"{_FINDINGS}:breaches_explained",
)
