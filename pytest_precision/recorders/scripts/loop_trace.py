"""Write one rank's trace of a training loop, as digests or as values."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch.distributed as dist

from pytest_precision._torch.distributed import default_store
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.observation import Observation
from pytest_precision.errors import expected_but_got
from pytest_precision.recorders.collector import collector_paused
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.recorded_part import RecordedPart
from pytest_precision.trace.digests import SMALL_RUN, digest_threads
from pytest_precision.trace.header import Header
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import Moment, Window
from pytest_precision.trace.named_digests import digested
from pytest_precision.trace.rank_origin import RankOrigin
from pytest_precision.trace.writer import FirstShown, TraceWriter

LAUNCHED = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which torchrun, and Slurm's srun, say how many processes they have started."""


class NotWrittenError(OSError):
    """A recording could not be written to disk; the script itself made no error."""


@contextmanager
def written() -> Iterator[None]:
    """Turn an `OSError` inside the context into a `NotWrittenError`."""
    try:
        yield
    except OSError as error:
        raise NotWrittenError(error.errno, error.strerror, error.filename) from error


def rank_and_world_size() -> tuple[int, int]:
    """Return rank and world size of the default process group; 0 and 1 without one.

    Raises:
        RuntimeError: a launcher started several processes, which have made no group.
    """
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    launched = {name: os.environ.get(name, "1") for name in LAUNCHED}
    if {*launched.values()} != {"1"}:
        raise RuntimeError(
            expected_but_got(
                "a process group before the first forward, since a launcher started several "
                "processes,",
                f"none and the environment variables {launched}",
                "call torch.distributed.init_process_group() earlier in the script",
            )
        )
    return 0, 1


def launch_of_group() -> str:
    """Return a name that all ranks of the default process group agree on, without waiting.

    Whichever rank comes first gives it, in the store by which they have met. Empty without a group,
    or with a store that cannot do that.
    """
    if not dist.is_initialized():
        return ""
    store = default_store()
    try:
        agreed: bytes = store.compare_set("pytest_precision/launch", "", uuid.uuid4().hex)
    except (RuntimeError, NotImplementedError):
        return ""
    return agreed.decode()


class LoopTrace(ExitStack):
    """Writes one rank's trace of a training loop.

    Args:
        folder: an existing one, the same for all ranks.
        steps: number of train steps of the whole loop.
        window: the train steps whose values are written; None for the whole run.
        manifest: of a recording that outlives the session. Digests of whole tensors are written,
            and the values of its steps, 0 for the start, or of all if the run is small; None leaves
            the choice to the size alone.
        digest_name: name of the digests.
        rank_of: rank and world size of this process in training; those of the default process
            group unless given.

    Attributes:
        writer: of the trace.
        rank, world_size: of this process in training.
        origin: of this rank's files, of a recording that outlives the session.
    """

    writer: TraceWriter
    rank: int
    world_size: int

    origin: RankOrigin | None = None

    def __init__(
        self,
        folder: Path,
        steps: int,
        window: Window | None,
        manifest: Manifest | None = None,
        *,
        digest_name: str,
        rank_of: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self._folder = folder
        self._steps = steps
        self._window = window
        self._manifest = manifest
        self._digest_name = digest_name
        self._rank_of = rank_of
        self._small = self._whole = False
        self._part = RecordedPart()

    def open(self, reader: LoopReader) -> None:
        """Open the trace of this rank on disk, once a model of the loop is known.

        Args:
            reader: of the run.
        """
        if not hasattr(self, "writer"):
            with written():
                self._choose(reader)
        self._part = reader.part

    def _choose(self, reader: LoopReader) -> None:
        """Choose by the number of this rank's parameters whether the trace has digests or values.

        It asks no other rank: in a pipeline, those of later stages wait for what the forward is
        about to compute. Some may choose digests and others values, which a comparison can read.
        """
        self.rank, self.world_size = self._rank_of or rank_and_world_size()
        elements = sum(parameter.numel() for _, parameter in reader.names.parameters())
        if self._manifest is not None:
            self.origin = RankOrigin.of_process(launch_of_group())
        self._small = elements * self._steps <= SMALL_RUN
        whole = self._manifest is not None or not self._small
        self._whole = self._window is None and whole
        self.writer = self.enter_context(
            TraceWriter(
                self._folder,
                self.rank,
                digests=self._whole,
                threads=digest_threads(self.world_size),
                digest_name=self._digest_name,
                origin=self.origin,
            )
        )
        if self._manifest is not None and self.rank == 0:
            # Now, so that an incomplete recording can be told from none.
            self._manifest.write(self._folder, self.world_size)

    def capture(self, step: int) -> Capture:
        """Return an empty buffer for the tensors of a train step; step 0 is the initial state."""
        return Capture(snapshot=partial(self._snapshot, step))

    def writes(self, step: int) -> bool:
        """Return whether this step is written to the trace; step 0 is the initial state."""
        return self._window is None or step >= self._window.first

    def write(self, moment: Moment, observations: Iterator[Observation]) -> None:
        """Write one phase's tensors to the trace, and replace those written earlier for it."""
        with collector_paused(), written():
            chosen_observations = [each for each in observations if self._part.belongs(each)]
            self.writer.add(moment, chosen_observations, digests=self._digests(moment.step))

    def settle(self, described: Callable[[], tuple[Header, FirstShown]]) -> None:
        """Make the steps so far readable even if this process dies; see `TraceWriter.settle`."""
        if hasattr(self, "writer"):
            with written():
                self.writer.settle(described)

    def _snapshot(self, step: int, observation: Observation) -> Observation:
        if self._digests(step):
            return digested(observation, self._digest_name)
        with written():
            return self.writer.keep(observation)

    def _digests(self, step: int) -> bool:
        """Return whether a step's tensors are written as digests, not as values."""
        if self._window is not None or self._small:
            return False
        return self._manifest is None or step not in self._manifest.values
