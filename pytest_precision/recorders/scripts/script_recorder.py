"""Run a script on one rank, and record the loop that its `record` argument marks.

It is run from its start, and after each load, into one trace.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.matrix.sequence import Segment
from pytest_precision.matrix.ways_in import WayIn
from pytest_precision.recorders import torch_hooks
from pytest_precision.recorders.loop_job import LoopJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.products import ProductsProbe
from pytest_precision.recorders.rank_probes import RankProbe, made_probes
from pytest_precision.recorders.run_environment import FRESH_SEED, SEED
from pytest_precision.recorders.run_modes import disturbing_loop
from pytest_precision.recorders.scripts.current import CurrentRecord, record
from pytest_precision.recorders.scripts.loop_header import header_of
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.script import resumed, way_in
from pytest_precision.recorders.scripts.step_ends import StopRecording
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.recorders.variant import USUAL, Variant
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.moment import Window
from pytest_precision.trace.named_digests import digest_name_of_cell
from pytest_precision.trace.segment_folders import folder_of


class Record(CurrentRecord):
    """The `record` argument of a script, which says where its loop is: `with record(): loop()`.

    While the block is open, torch's global hooks are registered, and `Tensor.backward`, the
    clipping of `torch.nn.utils`, `GradScaler.step` and `GradScaler.unscale_` are wrapped; when it
    ends, also by an error, all is as it was. The block ends by itself where the loop begins the
    step after the last one of the cell, and the script goes on behind it. What it is told, and what
    it raises then, is as with `CurrentRecord`; besides it refuses a second block with RuntimeError.

    Attributes:
        folder: an existing one, the same for all ranks, for the checkpoint of a sequence that
            saves.
    """

    _steps: Steps

    def __init__(self, steps: Steps, folder: Path, way_in: WayIn) -> None:
        super().__init__()
        self.folder = folder
        self._steps = steps
        self._way_in = way_in
        self._opened = False

    @property
    def save_after(self) -> int | None:
        """Return after how many steps the loop must save to `folder`; None for no save."""
        return self._steps.schedule.save_after

    def _block(self) -> AbstractContextManager[None]:
        if self._opened:
            raise RuntimeError(
                "expected one block of record() but got a second one; put the whole loop into one"
            )
        self._opened = True
        return self._recording()

    def _expect_open(self) -> None:
        if not self._opened:
            raise RuntimeError(
                "expected record.see in the block of record() but got a call before it; move it "
                "into the loop"
            )

    @contextmanager
    def _recording(self) -> Iterator[None]:
        schedule = self._steps.schedule
        with followed(self._steps):
            yield
        if schedule.operation is not None:
            raise RuntimeError(
                expected_but_got(
                    f"a loop of {schedule.asked} train steps, those of the cell,",
                    f"{schedule.made} {self._way_in.ended}",
                    self._way_in.longer,
                )
            )
        if schedule.ends_trained:
            self._steps.ends.write_end()

    def end(self) -> None:
        """Raise if the script ended without `with record():` or the save that it had to make.

        Raises:
            RuntimeError: there was no block, or nothing was saved.
        """
        if not self._opened:
            raise RuntimeError(
                "expected a block of record() but got none; put `with record():` around the loop, "
                "with the `record` that the function is given, not the package's"
            )
        saved = self.save_after is None or any(self.folder.iterdir())
        if not saved and dist.get_rank() == 0:
            raise RuntimeError(
                expected_but_got(
                    f"a loop that saves after step {self.save_after}",
                    "nothing in record.folder",
                    "save to record.folder after record.save_after steps",
                )
            )


@contextmanager
def followed(steps: Steps) -> Iterator[None]:
    """Follow a loop: report its torch calls to `steps`, and end it after its last step."""
    with (
        steps.around("loop"),
        closing(steps.hooks),
        record.opened(steps),
        _quiet_threads(),
        suppress(StopRecording),
    ):
        with torch_hooks.opened(steps, *steps.listeners):
            yield
        steps.ends.finish()


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Suppress the traceback of a training thread that the recorder ends after the last step."""
    report = threading.excepthook

    def unless_ended(error: threading.ExceptHookArgs) -> None:
        if not issubclass(error.exc_type, StopRecording):
            report(error)

    threading.excepthook = unless_ended
    try:
        yield
    finally:
        if threading.excepthook is unless_ended:  # or a hook of the script's own
            threading.excepthook = report


def record_script(
    script: Callable[..., Any],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None = None,
    variant: Variant = USUAL,
    probes: Sequence[RankProbe] = (),
) -> int:
    """Run a script's function, and write this rank's trace of its train steps into `folder`.

    Args:
        script: takes the cell and a `Record`.
        cell: whose train steps are recorded.
        folder: an existing one, the same for all ranks.
        window: the train steps whose values are kept; None is the whole run.
        segment: the operations that it makes; the first ones unless given.
        variant: how the run differs from the usual one.
        probes: what judgements record beside the run.

    Returns:
        the number of observations that were written.

    Raises:
        RuntimeError: the script has not made the steps of the cell in a block of `record()`, or
            has saved nothing where the sequence does.
    """
    products: set[str] = set()
    watching: list[Probe[Steps]] = [*disturbing_loop(variant)]
    if cell.precision in COMPUTED and not variant.bare:
        watching.append(ProductsProbe(products))
    watching += made_probes(probes, LoopJob(cell, window, variant))
    return run_script(script, cell, folder, window, segment, watching, products)


def run_script(
    script: Callable[..., Any],
    cell: Cell,
    folder: Path,
    window: Window | None,
    segment: Segment | None,
    probes: Sequence[Probe[Steps]],
    products: Set[str] = frozenset(),
) -> int:
    """Run a script's function from its start, and after each load, while probes watch it.

    Args:
        script: takes the cell and a `Record`.
        cell: whose train steps are made.
        folder: an existing one, the same for all ranks.
        window: the train steps whose values are kept; None is the whole run.
        segment: the operations that it makes; the first ones unless given.
        probes: what watches it.
        products: dtypes of its matrix products, which a probe adds.

    Returns:
        the number of observations that were written.

    Raises:
        RuntimeError: see `record_script`.
    """
    segment = cell.segments[0] if segment is None else segment
    place, checkpoint = folder_of(folder, segment.number), folder / "checkpoint"
    for path in (place, checkpoint):
        path.mkdir(exist_ok=True)
    cell = cell.of_segment(segment)
    schedule: LoopSchedule | None = LoopSchedule(
        cell.operations,
        load=segment.start if segment.number else -1,  # the first one begins with the script
        done=segment.done,
        last=sys.maxsize if window is None else window.last,
        stop=segment.stop,
    )
    way = way_in(script)
    runs: list[Steps] = []
    name = digest_name_of_cell(cell)
    with LoopTrace(place, len(cell.operations), window, digest_name=name) as trace:
        while schedule is not None:
            torch.manual_seed(SEED if schedule.load < 0 else FRESH_SEED)
            reader = LoopReader()
            if schedule.loaded:
                reader.since.policies.show_all()
            runs.append(Steps(reader, trace, schedule, probes))
            record = Record(runs[-1], checkpoint, way)
            (script if schedule.load < 0 else resumed(script))(cell, record)
            record.end()
            schedule = schedule.next_run()
            if schedule is not None:
                # A rank must not load, or save over, what another has not finished.
                dist.barrier()
        return finished(trace, runs, cell, place, probes, way, products)


def finished(
    trace: LoopTrace,
    runs: Sequence[Steps],
    cell: Cell,
    folder: Path,
    probes: Sequence[Probe[Steps]],
    way: WayIn,
    products: Set[str] = frozenset(),
    *,
    seeded: bool = True,
) -> int:
    """Finish a script's trace and the logs beside it; return the number of observations."""
    write_data(folder, trace.rank)
    for probe in probes:
        probe.write(folder, trace.rank)
    trace.writer.finish(
        header_of(trace, runs, cell, way, products, seeded=seeded), runs[0].reader.starts()
    )
    return trace.writer.observations
