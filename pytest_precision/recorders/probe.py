"""The protocol of probes: what disturbs a run, or records something beside or of it.

Two drivers take a run through its operations, and tell the same probes what they do: `engine_run`
calls an engine's phases, and `scripts/steps` follows a loop that calls torch itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pytest_precision.trace.moment import Moment


class ProbedRun(Protocol):
    """What both drivers say of a run; a probe of one of them may ask that driver for more."""

    @property
    def step(self) -> int:
        """Return the number of the train step that runs, from 1; 0 before the first one."""


RunT = TypeVar("RunT", bound=ProbedRun, contravariant=True)


class Probe(Generic[RunT]):
    """Watches or disturbs a run; each method does nothing unless a subclass overrides it.

    A call is named by a word:

    - of an engine `build`, `operation` (one of the sequence, as a whole) and the names of the
      engine's methods, such as `forward_backward`, `optimizer_step` and `save`;
    - of a loop `loop`, and `optimizer_step` for each `step` of each of its optimizers.

    Probes are told in their order, and the first one's context is the outermost.
    """

    def begin(self, run: RunT) -> None:
        """Prepare for a run, before its first call; a loop is run anew after each load."""

    def around(self, run: RunT, call: str) -> AbstractContextManager[object]:
        """Return a context for a call that the driver makes itself."""
        return self._before_and_after(run, call)

    @contextmanager
    def _before_and_after(self, run: RunT, call: str) -> Iterator[None]:
        self.before(run, call)
        yield
        self.after(run, call)

    def before(self, run: RunT, call: str) -> None:
        """Act before a call."""

    def after(self, run: RunT, call: str) -> None:
        """Act after a call; this is not called where the call failed or was left out."""

    def shown(self, run: RunT, moment: Moment) -> None:
        """Look at the run after a phase; all ranks do so at the same moments."""

    def write(self, folder: Path, rank: int) -> None:
        """Write this rank's results into the folder of the trace."""


@contextmanager
def around_call(probes: Iterable[Probe[RunT]], run: RunT, call: str) -> Iterator[None]:
    """Open the contexts of all probes around a call of a run."""
    with ExitStack() as contexts:
        for probe in probes:
            contexts.enter_context(probe.around(run, call))
        yield
