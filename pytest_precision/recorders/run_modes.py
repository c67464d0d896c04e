"""Run modes: the functions that record a side as its variant says.

They are named by import paths. What records no trace, or disturbs a run, is a probe: the core does
not import it, and a rank imports it where a run has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pytest_precision.recorders.variant import Mode, Variant

if TYPE_CHECKING:
    from pytest_precision.recorders.engine_run import EngineRun
    from pytest_precision.recorders.layout_job import LayoutJob
    from pytest_precision.recorders.probe import Probe
    from pytest_precision.recorders.scripts.steps import Steps

_PACKAGE = __name__.partition(".")[0]

RecorderNames = Mapping[Mode, str]
"""Of each mode the `module:function` below `pytest_precision` that records a side."""

OF_LAYOUTS: RecorderNames = {
    Mode.TRACE: "recorders.engine_recorder:record_engine",
    Mode.LOG: "probes.lines.logged_run:log_layout",
    Mode.BESIDE_EXACT: "probes.accuracy.first_step:record_first_step",
}
"""Each takes a `LayoutJob`."""

OF_SCRIPTS: RecorderNames = {
    Mode.TRACE: "recorders.scripts.script_recorder:record_script",
    Mode.LOG: "probes.lines.logged_script:log_script",
}
"""Each takes what `record_script` does. A script has no workload to compute its step in fp64."""

DELAYS = "probes.races.perturb.delays:delays"
"""The context that makes a rank late."""


PERTURBATION = "probes.races.perturbation_probe:PerturbationProbe"
"""The probe that delays or rounds the phases of an engine's train steps."""

LOOP_ROUNDING = "probes.races.loop_rounding:LoopRounding"
"""The probe that rounds the train steps of a script's loop."""


def layout_recorder(mode: Mode) -> Callable[[LayoutJob], int]:
    """Return the function that records a layout's run, and counts the observations."""
    record: Callable[[LayoutJob], int] = _named(OF_LAYOUTS[mode])
    return record


def script_recorder(mode: Mode) -> Callable[..., int]:
    """Return the function that records a script's run, and counts the observations."""
    record: Callable[..., int] = _named(OF_SCRIPTS[mode])
    return record


@contextmanager
def delayed(variant: Variant) -> Iterator[Callable[[], None] | None]:
    """Delay this rank's collectives in this context, if the variant makes it late.

    Yields:
        what delays it elsewhere; None in a run without delays.
    """
    if not variant.delays:
        yield None
        return
    with _named(DELAYS)(variant.delays) as pause:
        yield pause


def disturbing(job: LayoutJob) -> Iterator[Probe[EngineRun]]:
    """Yield the probe that delays or rounds an engine's run, if the run's variant asks for one."""
    if job.pause is not None or job.variant.noise:
        yield _named(PERTURBATION)()


def disturbing_loop(variant: Variant) -> Iterator[Probe[Steps]]:
    """Yield the probe that disturbs a script's loop, if its variant says so."""
    if variant.noise:
        yield _named(LOOP_ROUNDING)(variant.noise)


def _named(name: str) -> Any:
    return resolve_name(f"{_PACKAGE}.{name}")
