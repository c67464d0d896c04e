"""Engine probes: choose by what an engine's run is judged beside its trace."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.recorders.alone_engine_probe import AloneEngineProbe
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.gradient_probe import GradientProbe
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.products import ProductsProbe
from pytest_precision.recorders.update_watcher import UpdateProbe
from pytest_precision.trace.moment import EVERYTHING


def probes_of(job: LayoutJob, dtypes: set[str]) -> Iterator[Probe[EngineRun]]:
    """Yield the probes by which a side is judged by itself, the outermost first.

    Updates and gradients are judged of whole runs: what is recorded again explains something.

    Args:
        job: what is run.
        dtypes: takes those of the run's matrix products, for the header of the trace.
    """
    variant = job.variant
    is_whole = job.window in (None, EVERYTHING) and not variant.ends_only
    if job.cell.precision in COMPUTED:
        yield ProductsProbe(dtypes)
    if is_whole and variant.updates:
        yield UpdateProbe(explains=not variant.is_perturbed)
    if is_whole and not variant.is_perturbed:
        yield AloneEngineProbe()
        yield GradientProbe(judges=variant.gradients, other_log=job.other_log)
