"""How much of each update rounding loses, and the share that a test allows."""

from pytest_precision.registered import FigureSpec, GateSpec, ProbeSpec

_CURVES = "pytest_precision.probes.lost_updates.curves"

PROBE = ProbeSpec(
    name="lost_updates",
    engine="pytest_precision.probes.declared_rule.update_watcher:update_probe",
    loop="pytest_precision.probes.declared_rule.loop_updates:loop_updates",
    gates=(
        GateSpec(
            "pytest_precision.probes.lost_updates.loss_limit:lost_updates", after="declared_rule"
        ),
    ),
    figures=(
        FigureSpec("lost_updates", f"{_CURVES}:shares_lost", of_both=True),
        FigureSpec("curves", f"{_CURVES}:curves_of_runs", of_both=True),
    ),
    explains=f"{_CURVES}:losses_explained",
)
