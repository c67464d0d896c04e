"""Engine recorder: run an engine with the probes that its job asks for, and write its recording."""

from __future__ import annotations

import torch.distributed as dist

from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.recorders.data_probe import DataProbe
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.engine_trace import EngineTrace
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.products import ProductsProbe
from pytest_precision.recorders.rank_probes import made_probes
from pytest_precision.recorders.run_modes import disturbing


def record_engine(job: LayoutJob) -> int:
    """Run an engine through a sequence of operations, and write this rank's recording to disk.

    Returns:
        the number of observations that were written.
    """
    products: set[str] = set()
    trace = EngineTrace(job, products)
    probes: list[Probe[EngineRun]] = [DataProbe()]
    if job.cell.precision in COMPUTED and not job.variant.bare:
        probes.append(ProductsProbe(products))
    # What disturbs the run is innermost, so that no probe computes in its context.
    probes += [*made_probes(job.probes, job), *disturbing(job), trace]
    run = EngineRun(job, probes)
    folder, rank = job.place(), dist.get_rank()
    with trace.opened(run, folder, rank):
        run.run()
        run.write(folder, rank)
        return trace.writer.observations
