"""Identities that hold within one run, such as weight = cast master."""

from pytest_precision.registered import FigureSpec, GateSpec, ProbeSpec

_CONTRADICTIONS = "pytest_precision.probes.identities.contradictions"

PROBE = ProbeSpec(
    name="identities",
    gates=(GateSpec(f"{_CONTRADICTIONS}:consistent", after="vacuity"),),
    figures=(
        FigureSpec(
            "identities", f"{_CONTRADICTIONS}:identities_in_runs", of_both=True, of_values=True
        ),
    ),
    explains=f"{_CONTRADICTIONS}:contradictions_explained",
)
