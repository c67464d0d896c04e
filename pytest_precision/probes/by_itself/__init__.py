"""What a run shows to be wrong by itself, without a reference and without a declared rule.

Each module of a judgement has its rule, what it watches, and its words; `judges` lists them.
"""

from pytest_precision.registered import FigureSpec, GateSpec, ProbeSpec

_FINDINGS = "pytest_precision.probes.by_itself.findings"

PROBE = ProbeSpec(
    name="by_itself",
    engine="pytest_precision.probes.by_itself.engine_probe:engine_probe",
    loop="pytest_precision.probes.by_itself.loop_probe:loop_probe",
    gates=(GateSpec(f"{_FINDINGS}:by_itself", after="loop_rules", of_recordings=True),),
    figures=(FigureSpec("notes", f"{_FINDINGS}:noted_alone"),),
    explains=f"{_FINDINGS}:explained_alone",
)
