"""Features that a run never used, so that its verdict does not cover them."""

from pytest_precision.registered import FigureSpec, ProbeSpec

PROBE = ProbeSpec(
    name="coverage_gaps",
    figures=(FigureSpec("unexercised", "pytest_precision.probes.coverage_gaps.gaps:gaps"),),
)
