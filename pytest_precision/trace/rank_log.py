"""The base of what ranks write beside their traces: one file a rank, read as one log of the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, TypeVar

from pytest_precision.trace.files import OWN_FILES, TraceFiles, write_whole
from pytest_precision.trace.segment_folders import holders

LogT = TypeVar("LogT", bound="RankLog")


class RankPart(NamedTuple):
    """What one rank has written of a log, in one part of a run between restarts."""

    folder: Path
    rank: int
    content: Any


class RankLog(ABC):
    """What all ranks of a run have written about one matter, such as its weight updates.

    Attributes:
        stem: begins the name of each rank's file, as `oracle` does that of `oracle0.json`.
        of_rank_0: whether rank 0 writes for all ranks, into a file without a number.
        in_bare: whether a bare run has it, too.
    """

    stem: ClassVar[str]
    of_rank_0: ClassVar[bool] = False
    in_bare: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def merged(cls: type[LogT], parts: Iterable[RankPart]) -> LogT:
        """Merge the logs of all ranks and parts of a run into one log, in order of ranks."""

    @classmethod
    def absent(cls: type[LogT]) -> LogT | None:
        """Return the log of a run that wrote none; None if each run writes one."""
        return None

    @classmethod
    def file_of(cls, rank: int) -> str:
        """Return the name of the file that a rank writes."""
        return f"{cls.stem}{'' if cls.of_rank_0 else rank}.json"

    @classmethod
    def store(cls, folder: Path, rank: int, content: Any) -> None:
        """Write the log of one rank as JSON into a folder, beside the rank's trace."""
        write_whole(folder / cls.file_of(rank), content)

    @classmethod
    def read(
        cls: type[LogT], folder: Path, *world_sizes: int, files: TraceFiles = OWN_FILES
    ) -> LogT:
        """Read the log of a whole run.

        Args:
            folder: of the recording.
            world_sizes: the number of ranks of each part of the run between restarts.
            files: read the folder's files.

        Raises:
            OSError, KeyError: a rank lacks its file.
        """
        writers = [
            (place, rank)
            for _, place, rank in holders(folder, world_sizes)
            if not (cls.of_rank_0 and rank)
        ]
        paths = [place / cls.file_of(rank) for place, rank in writers]
        absent = cls.absent()
        if absent is not None and not files.has(paths[0]):
            return absent
        contents = map(files.data, paths)
        return cls.merged(
            RankPart(*writer, content) for writer, content in zip(writers, contents, strict=True)
        )


class SealedLog(RankLog):
    """A log that a recording of `record` has, too, in which strangers may have written.

    A rank that has nothing to say has no file of it there.
    """

    @classmethod
    @abstractmethod
    def nothing(cls) -> dict[str, Any]:
        """Return the content of an empty log."""

    @classmethod
    @abstractmethod
    def expect_sound(cls, content: Any) -> None:
        """Raise unless the parsed content of a rank's file is well formed.

        Raises:
            ValueError: it names what cannot be.
        """


SEALED_LOGS = (
    "pytest_precision.trace.data_log:DataLog",
    "pytest_precision.probes.lost_updates.update_log:UpdateLog",
    "pytest_precision.probes.by_itself.judged_log:JudgedLog",
)
"""Paths of the classes of `SealedLog`, in the order in which manifests name their files."""

SHARED_LOG = "pytest_precision.probes.gradients.gradient_log:GradientLog"
"""Path of the log of a reference that spares the candidate's ranks what was computed for it."""


@cache
def sealed_logs() -> tuple[type[SealedLog], ...]:
    """Return the logs that recordings of `record` have, imported when first asked for."""
    return tuple(map(resolve_name, SEALED_LOGS))


def shared_log() -> type[RankLog]:
    """Return the log of the reference that the candidate's ranks get; empty, it tells nothing."""
    shared: type[RankLog] = resolve_name(SHARED_LOG)
    return shared
