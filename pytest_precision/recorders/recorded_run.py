"""Recorded run: a segment of a layout's sequence on one rank, written as a trace with its logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from pytest_precision.engine import groups
from pytest_precision.matrix.axis_reads import so_far
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.segments import Segment
from pytest_precision.recorders.engine_recorder import EngineRecorder, Layout
from pytest_precision.recorders.perturb.perturbation import NONE, Perturbation, with_other_data
from pytest_precision.recorders.run_environment import environment_of, with_backend
from pytest_precision.trace.digests import digest_threads
from pytest_precision.trace.gradient_log import RightSteps
from pytest_precision.trace.moment import Window
from pytest_precision.trace.segment_folders import folder_of
from pytest_precision.trace.store import Header
from pytest_precision.trace.writer import TraceWriter
from pytest_precision.workloads.base import Workload


def record_engine(
    layout: Layout,
    other: Layout,
    workload: Callable[[], Workload],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None = None,
    perturbation: Perturbation = NONE,
    *,
    gradients: bool = True,
    right: RightSteps | None = None,
) -> int:
    """Write what this rank sees of one segment of a run into `folder`.

    Digests are of whole logical tensors, whoever holds which shard, so that they can be compared
    between layouts; values are the pieces as each rank holds them. A run of few elements and steps
    is kept as values: gathering shards for digests would take longer. Digests of the data that the
    workload gave and, if the whole run is recorded, lost updates are written next to the trace.

    Args:
        layout: makes the engine that is run.
        other: makes the engine that continues after `swap`, until the next one.
        workload: makes the workload.
        cell: its sequence is run; its layouts see the backend that was chosen.
        folder: an existing one, the same for all ranks.
        window: the train steps whose values are kept; None is the whole run.
        segment: the operations that are run; the first ones unless given.
        perturbation: what is done to the run on purpose.
        gradients: whether losses and gradients of a whole run are computed once more.
        right: see `GradientOracle`.

    Returns:
        the number of observations that were written.
    """
    segment = cell.segments[0] if segment is None else segment
    cell, taken = with_backend(cell)
    made = with_other_data(workload(), perturbation.start)
    run = EngineRecorder(
        layout, other, made, cell, folder, window, segment, perturbation, gradients, right
    )
    place, rank = folder_of(folder, segment.number), dist.get_rank()
    place.mkdir(exist_ok=True)
    threads = digest_threads(segment.world_size)
    with TraceWriter(place, rank, digests=run.digests, threads=threads) as run.writer:
        run.run()
        if run.watcher is not None:
            run.watcher.write(place, rank)
        run.data.write(place, rank)
        run.gradients.write(place, rank)  # asks for data again, which is nobody's training
        environment = environment_of(cell) | taken
        run.look_at_storage()
        run.writer.close(
            Header(
                segment.world_size,
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
