"""Engine recorder: run an engine with the probes that its job asks for, and write its recording."""

from __future__ import annotations

import torch.distributed as dist

from pytest_precision.recorders.data_probe import DataProbe
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.engine_trace import EngineTrace
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.perturbation_probe import PerturbationProbe
from pytest_precision.recorders.probe import Probe


def record_engine(job: LayoutJob) -> int:
    """Run an engine through a sequence of operations, and write this rank's recording to disk.

    Returns:
        the number of observations that were written.
    """
    products: set[str] = set()
    trace = EngineTrace(job, products)
    probes: list[Probe[EngineRun]] = [PerturbationProbe(), trace]
    if not job.variant.bare:
        # Only here, so that who steps through a bare cell meets nothing that it does not need.
        from pytest_precision.recorders.engine_probes import probes_of

        probes = [*probes_of(job, products), *probes]
    run = EngineRun(job, [DataProbe(), *probes])
    folder, rank = job.place(), dist.get_rank()
    with trace.opened(run, folder, rank):
        run.run()
        run.write(folder, rank)
        return trace.writer.observations
