"""The `record` object that a script file imports, which forwards to the running recording."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_precision.recorders.scripts.located import Locate, PieceOfTensor
    from pytest_precision.recorders.scripts.loop_names import Models
    from pytest_precision.recorders.scripts.steps import Steps


class CurrentRecord:
    """The `record` that a script file imports from `pytest_precision` to describe its loop.

        with record(locate=locate_of(optimizer)):
            train()

    A file that runs as a command, or under `python -m pytest_precision record`, is recorded from
    its start, so that it needs none of this. If nothing is recorded, nothing happens here.
    """

    def __init__(self) -> None:
        self._steps: Steps | None = None

    @property
    def is_running(self) -> bool:
        """Return whether this process is being recorded."""
        return self._steps is not None

    def __call__(
        self,
        model: Models = None,
        *,
        see: Collection[str] = (),
        locate: Locate | None = None,
    ) -> AbstractContextManager[None]:
        """Tell the recorder which model the loop trains, and which tensors lie in flat buffers.

        It returns the context in which the loop runs.

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

        Returns:
            a context manager, in which the loop runs: the block of a script's `Record`; otherwise
            it does nothing, since the recording is open already.

        Raises:
            TypeError: `model` or `locate` is none.
            ValueError: nothing but `grad` is seen on demand.
            RuntimeError: the loop has begun, or a block trains too few steps.
        """
        block = self._block()
        if self._steps is not None:
            self._steps.tell(model, see=see, locate=locate)
        return block

    def see(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        *,
        of: PieceOfTensor | None = None,
        local: bool = False,
    ) -> None:
        """Record a tensor, such as an activation, at this place in the train step.

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
        self._expect_open()
        if self._steps is not None:
            self._steps.see(kind, name, tensor, of=of, local=local)

    def skipped(self) -> None:
        """Declare that the loop makes no update in this step, as after an overflow.

        For a loop or a framework that finds an overflow by itself, neither by the norm that
        `clip_grad_norm_` returns nor by `GradScaler`; these are seen.
        """
        if self._steps is not None:
            self._steps.skipped()

    def _expect_open(self) -> None:
        """Do nothing; `Record` overrides this to raise if called before `with record():`."""

    def _block(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def opened(self, steps: Steps) -> Iterator[None]:
        """Connect the imported `record` to a running recording, inside the context."""
        before = self._steps
        self._steps = steps
        try:
            yield
        finally:
            self._steps = before


record = CurrentRecord()
