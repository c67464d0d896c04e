"""Tolerances under which a failed cell would pass."""

from pytest_precision.registered import FigureSpec, ProbeSpec

PROBE = ProbeSpec(
    name="proposals",
    figures=(
        FigureSpec(
            "needed",
            "pytest_precision.probes.proposals.required_tolerance:needed",
            of_values=True,
        ),
    ),
    proposes="pytest_precision.probes.proposals.proposal_lines:proposes",
    in_bare=True,
)
