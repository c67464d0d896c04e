"""Current: the recording that is open in this process, as a script file finds it."""

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

    def __call__(
        self,
        model: Models = None,
        *,
        see: Collection[str] = (),
        locate: Locate | None = None,
    ) -> AbstractContextManager[None]:
        """Describe the loop to the recording that runs, with the arguments of `Record`.

        Returns:
            a context manager, which does nothing: the recording is open already.

        Raises:
            RuntimeError: the loop has begun.
        """
        if self._steps is not None:
            self._steps.tell(model, see=see, locate=locate)
        return nullcontext()

    def see(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        *,
        of: PieceOfTensor | None = None,
        local: bool = False,
    ) -> None:
        """Observe a tensor at this place of the step, as `Record.see` does."""
        if self._steps is not None:
            self._steps.see(kind, name, tensor, of=of, local=local)

    def skipped(self) -> None:
        """Say that the loop leaves out the update of this step, as `Record.skipped` does."""
        if self._steps is not None:
            self._steps.skipped()

    @contextmanager
    def opened(self, steps: Steps) -> Iterator[None]:
        """Make a recording the current one inside the block."""
        before = self._steps
        self._steps = steps
        try:
            yield
        finally:
            self._steps = before


record = CurrentRecord()
