"""Engine recorder: run an engine with the probes that its job asks for, and write its recording."""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist

from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.recorders.data_probe import DataProbe
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.engine_trace import EngineTrace
from pytest_precision.recorders.gradient_probe import GradientProbe
from pytest_precision.recorders.layout_job import NONE, LayoutJob
from pytest_precision.recorders.perturbation_probe import PerturbationProbe
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.products import ProductsProbe
from pytest_precision.recorders.update_watcher import UpdateProbe
from pytest_precision.trace.moment import EVERYTHING


def record_engine(job: LayoutJob) -> int:
    """Run an engine through a sequence of operations, and write this rank's recording to disk.

    Returns:
        the number of observations that were written.
    """
    products = ProductsProbe()
    trace = EngineTrace(job, products.dtypes)
    beside = () if job.bare else probes_of(job, products)
    run = EngineRun(job, (*beside, PerturbationProbe(), trace))
    folder, rank = job.place(), dist.get_rank()
    with trace.opened(run, folder, rank):
        run.run()
        run.write(folder, rank)
        return trace.writer.observations


def probes_of(job: LayoutJob, products: ProductsProbe) -> Iterator[Probe[EngineRun]]:
    """Yield the probes that record something beside the trace, the outermost first.

    Updates and gradients are judged of whole runs: what is recorded again explains something.

    Args:
        job: what is run.
        products: records the dtypes of products.
    """
    is_whole = job.window in (None, EVERYTHING) and not job.perturbation.ends_only
    is_plain = job.perturbation == NONE
    if job.cell.precision in COMPUTED:
        yield products
    if is_whole and job.updates:
        yield UpdateProbe(explains=is_plain)
    yield DataProbe()
    if is_whole and is_plain:
        yield GradientProbe(judges=job.gradients, other_log=job.other_log)
