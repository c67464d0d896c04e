"""Runs: record a script on one rank, from its start and after each load, into one trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pytest_precision.engine import groups
from pytest_precision.matrix.axis_reads import so_far
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import Segment
from pytest_precision.matrix.ways_in import WayIn
from pytest_precision.recorders.lost_updates import UpdateMeter
from pytest_precision.recorders.products import Products
from pytest_precision.recorders.run_environment import FRESH_SEED, SEED, environment_of
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.script import resumed, way_in
from pytest_precision.recorders.scripts.script_recorder import Record
from pytest_precision.recorders.scripts.steps import ON_DEMAND, Steps
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.files import write_whole
from pytest_precision.trace.moment import EVERYTHING, Window
from pytest_precision.trace.reader import Header
from pytest_precision.trace.recording import BROKEN_RULES
from pytest_precision.trace.segment_folders import folder_of, log_path


def record_script(
    script: Callable[..., Any],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None = None,
    made: Callable[..., Steps] = Steps,
) -> int:
    """Run a script's function, and write this rank's trace of its train steps into `folder`.

    Args:
        script: takes the cell and a `Record`.
        cell: whose train steps are recorded.
        folder: an existing one, the same for all ranks.
        window: the train steps whose values are kept; None is the whole run.
        segment: the operations that it makes; the first ones unless given.
        made: makes what follows one run of the loop.

    Returns:
        the number of observations that were written.

    Raises:
        RuntimeError: the script has not made the steps of the cell in a block of `record()`, or
            has saved nothing where the sequence does.
    """
    segment = cell.segments[0] if segment is None else segment
    place = folder_of(folder, segment.number)
    checkpoint = folder / "checkpoint"
    for one in (place, checkpoint):
        one.mkdir(exist_ok=True)
    cell = cell.of_segment(segment)
    run: LoopSchedule | None = LoopSchedule(
        cell.operations,
        load=segment.start if segment.number else -1,  # the first one begins with the script
        done=segment.done,
        last=sys.maxsize if window is None else window.last,
        stop=segment.stop,
    )
    way = way_in(script)
    runs: list[Steps] = []
    products = Products()
    broken = []
    meter = UpdateMeter() if window in (None, EVERYTHING) else None
    with LoopTrace(place, len(cell.operations), window) as trace:
        while run is not None:
            torch.manual_seed(SEED if run.load < 0 else FRESH_SEED)
            runs.append(made(LoopReader(), trace, run, meter))
            record = Record(cell, runs[-1], checkpoint, products, way)
            (script if run.load < 0 else resumed(script))(cell, record)
            record.end()
            broken += record.broken
            # A rank must not load, or save over, what another has not finished.
            dist.barrier()
            run = run.next_run()
        write_whole(log_path(place, BROKEN_RULES, trace.place.rank), broken)
        return finished(trace, runs, cell, place, products, way, meter)


def finished(
    trace: LoopTrace,
    runs: Sequence[Steps],
    cell: Cell,
    folder: Path,
    products: Products,
    way: WayIn,
    meter: UpdateMeter | None = None,
) -> int:
    """Finish a script's trace and the logs beside it; return the number of observations."""
    write_data(folder, trace.place.rank)
    (meter or UpdateMeter()).write(folder, trace.place.rank)
    trace.writer.finish(
        Header(
            trace.place.world_size,
            {kind: why for run in runs for kind, why in unobservable(run, way)},
            environment_of(cell),
            violations=tuple(words for run in runs for words in run.ends.violations),
            products=tuple(sorted(products.dtypes)),
            given=tuple(dict.fromkeys(what for run in runs for what in run.buffer.shown)),
            unshown={
                what: why
                for run in runs
                for optimizer in run.reader.optimizers
                for what, why in groups.unshown(optimizer).items()
            }
            | {what: why for run in runs for what, why in run.reader.part.unshown().items()},
            read=so_far(),
        )
    )
    return trace.writer.observations


def unobservable(steps: Steps, way: WayIn) -> Iterator[tuple[str, str]]:
    """Yield (kind, reason) for the tensors of a loop that could not be observed or named."""
    seen = steps.buffer.seen
    if ON_DEMAND not in seen:
        yield ON_DEMAND, way.shows_grad
    if "used_param" not in seen:
        yield "used_param", "no module was called while gradients were on, unless in compiled code"
    if "loss" not in seen:
        yield "loss", "Tensor.backward was not called"
    for module, why in steps.buffer.unread.items():
        yield f"used_param in {module}", why
    for prefix in steps.reader.names.twins:
        yield (
            "names",
            f"{prefix}* has the structure of an earlier model, which still exists and was not "
            "called again; if the new model replaces it, delete the earlier one first, or resume "
            "in a new run with @script(resume=function)",
        )
    if steps.reader.unnamed:
        first, *others = steps.reader.unnamed
        more = f" and {len(others)} more" if others else ""
        yield (
            "unnamed",
            f"the optimizer's tensor at {first}{more} is in no module that was called, and is "
            "compared by that position",
        )
