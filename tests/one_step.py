"""The rest of a train step, for tests that look at an engine after it and record nothing."""

from __future__ import annotations

from pytest_precision import Engine
from pytest_precision.engine.engine import STEP_PHASES


def finish_step(engine: Engine) -> None:
    """Run the phases of a step that follow its forward and backward."""
    for phase in STEP_PHASES[1:]:
        getattr(engine, phase)()
