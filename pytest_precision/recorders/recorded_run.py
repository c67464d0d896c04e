"""Recorded run: a segment of a layout's sequence on one rank, written as a trace with its logs."""

from __future__ import annotations

import torch.distributed as dist

from pytest_precision.engine import groups
from pytest_precision.matrix.axis_reads import so_far
from pytest_precision.recorders.engine_recorder import EngineRecorder
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.trace.digests import digest_threads
from pytest_precision.trace.store import Header
from pytest_precision.trace.writer import TraceWriter


def record_engine(job: LayoutJob) -> int:
    """Write what this rank sees of one segment of a run into the folder of the job.

    Digests are of whole logical tensors, whoever holds which shard, so that they can be compared
    between layouts; values are the pieces as each rank holds them. A run of few elements and steps
    is kept as values: gathering shards for digests would take longer. Digests of the data that the
    workload gave and, if the whole run is recorded, lost updates are written next to the trace.

    Returns:
        the number of observations that were written.
    """
    run = EngineRecorder(job)
    place = job.place()
    rank = dist.get_rank()
    threads = digest_threads(job.segment.world_size)
    with TraceWriter(place, rank, digests=run.digests, threads=threads) as run.writer:
        run.run()
        if run.watcher is not None:
            run.watcher.write(place, rank)
        run.data.write(place, rank)
        run.gradients.write(place, rank)  # asks for data again, which is nobody's training
        environment = environment_of(run.cell) | run.backend
        run.look_at_storage()
        run.writer.close(
            Header(
                job.segment.world_size,
                dict(run.engine.unobservable),
                environment,
                paths=tuple(sorted(run.paths)),
                violations=tuple(run.violations),
                products=tuple(sorted(run.products.dtypes)),
                unshown=groups.unshown(run.engine.optimizer),
                read=so_far(),
            )
        )
        return run.writer.observations
