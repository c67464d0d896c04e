"""Script recorder: the `record` argument by which a script marks its training loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path

import torch.distributed as dist

from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.matrix.ways_in import WayIn
from pytest_precision.recorders.products import Products
from pytest_precision.recorders.scripts import torch_hooks
from pytest_precision.recorders.scripts.current import CurrentRecord, record
from pytest_precision.recorders.scripts.loop_rules import LoopRules
from pytest_precision.recorders.scripts.step_ends import StopRecording
from pytest_precision.recorders.scripts.steps import Steps


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
        broken: rules of every loop that the loop has broken, see `LoopRules`.
    """

    _steps: Steps

    def __init__(
        self, cell: Cell, steps: Steps, folder: Path, products: Products, way_in: WayIn
    ) -> None:
        super().__init__()
        self.folder = folder
        self.broken: list[tuple[str, str]] = []
        self._cell = cell
        self._steps = steps
        self._products = products
        self._way_in = way_in
        self._opened = False

    @property
    def save_after(self) -> int | None:
        """Return after how many steps the loop must save to `folder`; None for no save."""
        return self._steps.schedule.save_after

    def _begin(self) -> None:
        if self._opened:
            raise RuntimeError(
                "expected one block of record() but got a second one; put the whole loop into one"
            )
        self._opened = True

    def _expect_open(self) -> None:
        if not self._opened:
            raise RuntimeError(
                "expected record.see in the block of record() but got it before; move it into "
                "the loop"
            )

    @contextmanager
    def _block(self) -> Iterator[None]:
        reader, schedule = self._steps.reader, self._steps.schedule
        rules = LoopRules(reader)
        products: AbstractContextManager[object] = (
            self._products if self._cell.precision in COMPUTED else nullcontext()
        )
        with products, closing(rules), followed(self._steps, rules):
            yield
        if schedule.operation is not None:
            raise RuntimeError(
                expected_but_got(
                    f"a loop of {schedule.asked} train steps, those of the cell,",
                    f"{schedule.made} {self._way_in.ended}",
                    self._way_in.longer,
                )
            )
        # Before the first update a name has a placeholder for the path of its module.
        self.broken = [(kind, reader.names.settled(words)) for kind, words in rules.broken]
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
def followed(steps: Steps, *others: torch_hooks.LoopEvents) -> Iterator[None]:
    """Follow a loop: report its torch calls to `steps`, and end it after its last step."""
    with closing(steps.hooks), record.opened(steps), _quiet_threads(), suppress(StopRecording):
        with torch_hooks.opened(steps, *others):
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
