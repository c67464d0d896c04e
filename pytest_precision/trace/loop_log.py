"""The log of loop rules: which a script has broken, next to the trace of each rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pytest_precision.trace.files import OWN_FILES, TraceFiles, write_whole
from pytest_precision.trace.segment_folders import holders


@dataclass
class LoopLog:
    """What a script has done that no loop should.

    Attributes:
        broken: words to the kind of what is wrong, which a test may leave unchecked.
    """

    broken: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, *world_sizes: int, files: TraceFiles = OWN_FILES) -> LoopLog:
        """Read the logs of all ranks and segments together; an engine has none."""
        log = cls()
        for _, place, rank in holders(folder, world_sizes):
            path = _path(place, rank)
            if files.has(path):
                log.broken |= {words: kind for kind, words in files.data(path)}
        return log


def write_loop_log(folder: Path, rank: int, broken: Iterable[tuple[str, str]]) -> None:
    """Write which rules this rank has broken: kinds, each with words."""
    write_whole(_path(folder, rank), [*broken])


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rules{rank}.json"
