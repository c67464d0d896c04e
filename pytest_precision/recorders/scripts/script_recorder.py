"""Record: the argument by which a script marks its training loop and shows more of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import COMPUTED
from pytest_precision.matrix.ways_in import WayIn
from pytest_precision.recorders.products import Products
from pytest_precision.recorders.scripts import torch_hooks
from pytest_precision.recorders.scripts.current import record
from pytest_precision.recorders.scripts.located import Locate, PieceOfTensor
from pytest_precision.recorders.scripts.loop_names import Models
from pytest_precision.recorders.scripts.loop_rules import LoopRules
from pytest_precision.recorders.scripts.step_ends import StopRecording
from pytest_precision.recorders.scripts.steps import Steps


class Record:
    """The `record` argument of a script, which says where its loop is: `with record(): loop()`.

    While the block is open, torch's global hooks are registered, and `Tensor.backward`, the
    clipping of `torch.nn.utils`, `GradScaler.step` and `GradScaler.unscale_` are wrapped; when it
    ends, also by an error, all is as it was. The block ends by itself where the loop begins the
    step after the last one of the cell, and the script goes on behind it.

    Attributes:
        folder: an existing one, the same for all ranks, for the checkpoint of a sequence that
            saves.
        broken: rules of every loop that the loop has broken, see `LoopRules`.
    """

    def __init__(
        self, cell: Cell, steps: Steps, folder: Path, products: Products, way_in: WayIn
    ) -> None:
        self.folder = folder
        self.broken: list[tuple[str, str]] = []
        self._cell = cell
        self._steps = steps
        self._products = products
        self._way_in = way_in
        self._opened = False

    @property
    def save_after(self) -> int | None:
        """Return the step after which the loop must save to `folder`; None for no save."""
        return self._steps.schedule.save_after

    def __call__(
        self,
        model: Models = None,
        *,
        see: Collection[str] = (),
        locate: Locate | None = None,
    ) -> AbstractContextManager[None]:
        """Return the context manager in which the loop runs.

        Args:
            model: what is trained, where calls do not show it: a model that is never called as a
                whole; a dict from name to model, where there are several.
            see: `{"grad"}` for the gradients as each backward leaves them, which costs a copy or a
                digest of all of them for each microbatch.
            locate: for parameters of a flat partition: from such a tensor to the pieces of logical
                tensors that lie one after the other in it, `[(name, shape, start, stop), ...]`, or
                None for any other tensor. `start` and `stop` are positions in the flattened logical
                tensor; a piece without a name is padding. Gradients, state, rates and
                hyperparameters of the parameter belong to the same pieces.

        Raises:
            TypeError: `model` or `locate` is none.
            ValueError: nothing but `grad` is seen on demand.
            RuntimeError: the script has had its block already, or trains too few steps in it.
        """
        if self._opened:
            raise RuntimeError(
                "expected one block of record() but got a second one; put the whole loop into one"
            )
        self._opened = True
        self._steps.tell(model, see=see, locate=locate)
        return self._block()

    def see(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        *,
        of: PieceOfTensor | None = None,
        local: bool = False,
    ) -> None:
        """Observe a tensor at this place in the step, such as an activation.

        It belongs to the phase that is running: forward and backward up to the clip or the update,
        clipping up to the end of the update, then the update, up to the next forward. If a step
        shows one name several times, the later ones are `name #2`, `name #3`.

        Args:
            kind: one of those in docs/reference/kinds.md, or a new one, which is then compared
                before weights.
            name: of the logical tensor.
            tensor: it, a DTensor, or the piece that `of` describes.
            of: shape of the logical tensor, and the elements from start to before stop of the
                flattened one that `tensor` holds; None where it is whole.
            local: whether every rank has a tensor of its own under this name, rather than a
                replica.

        Raises:
            TypeError: what is given has another type.
            ValueError: `tensor` has not as many elements as `of` says; a piece is local.
            RuntimeError: the block of `record()` is not open, or no forward was made in it.
        """
        if not self._opened:
            raise RuntimeError(
                "expected record.see in the block of record() but got it before; move it into "
                "the loop"
            )
        self._steps.see(kind, name, tensor, of=of, local=local)

    def skipped(self) -> None:
        """Say that the loop leaves out this step's update; the next step begins after it.

        For a loop or a framework that finds an overflow by itself, neither by the norm that
        `clip_grad_norm_` returns nor by `GradScaler`; these are seen.
        """
        self._steps.skipped()

    @contextmanager
    def _block(self) -> Iterator[None]:
        reader, schedule = self._steps.reader, self._steps.schedule
        rules = LoopRules(reader)
        products: AbstractContextManager[object] = (
            self._products if self._cell.precision in COMPUTED else nullcontext()
        )
        with products, followed(self._steps), rules.watching():
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
        """Check that the script has entered its block, and saved what it had to save.

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
    """Report the loop's events to `steps`; leave the block after the last step."""
    with closing(steps.hooks), record.opened(steps), suppress(StopRecording):
        with torch_hooks.opened(steps):
            yield
        steps.ends.finish()
