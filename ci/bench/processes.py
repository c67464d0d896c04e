"""The processes of a session: what each takes while it runs, and what is left after it."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

GROWTH_MB = {"pytest": 4.0, "server": 4.0, "rank": 16.0}
"""Of the memory of a process, from a quarter of its time to the end: what allocators keep, and not
what a job costs, which would be more the more jobs there are. A process that trains 1,200 times
with FSDP2, unobserved, keeps 10 MB, and gives half of them back when it is asked to."""
SETTLED = 200
"""Samples of a process after which its growth counts."""

MARK = "PYTEST_PRECISION_SOAK"
"""Variable of the environment that a session hands on, also to processes that leave its tree."""


@dataclass
class Track:
    """Memory and descriptors of one process, sample by sample."""

    megabytes: array[float] = field(default_factory=lambda: array("f"))
    descriptors: array[int] = field(default_factory=lambda: array("I"))

    def add(self, process: psutil.Process) -> None:
        """Take a sample."""
        memory = process.memory_info().rss / 2**20
        descriptors = process.num_fds()
        self.megabytes.append(memory)
        self.descriptors.append(descriptors)

    @property
    def growth(self) -> tuple[float, int]:
        """MB and descriptors from a quarter of the samples to the last."""
        start = len(self.megabytes) // 4
        more = self.megabytes[-1] - self.megabytes[start]
        return more, self.descriptors[-1] - self.descriptors[start]


class Processes:
    """The process of pytest, the fork server and the ranks below it, as they come and go."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, int, float], Track] = defaultdict(Track)

    def sample(self) -> None:
        """Take memory and descriptors of all that there are now."""
        me = psutil.Process()
        near = me.children()
        for process in [me, *me.children(recursive=True)]:
            part = "pytest" if process == me else "server" if process in near else "rank"
            with contextlib.suppress(psutil.Error):
                self._tracks[part, process.pid, process.create_time()].add(process)

    def growth(self, part: str) -> tuple[float, int]:
        """Return the most MB and descriptors by which such a process grew that was there long."""
        long = [
            track.growth
            for (process_part, _, _), track in self._tracks.items()
            if process_part == part and len(track.megabytes) >= SETTLED
        ]
        return max((more for more, _ in long), default=0.0), max((n for _, n in long), default=0)

    @property
    def problems(self) -> Iterator[str]:
        """What grew, in words."""
        for part, limit in GROWTH_MB.items():
            megabytes, descriptors = self.growth(part)
            if megabytes > limit:
                yield f"a process of {part} grew by {megabytes:.1f} MB"
            if part == "rank" and descriptors > 0:  # the others have some for each rank that waits
                yield f"a rank kept {descriptors} more descriptors"


def held(folder: Path) -> dict[str, set[str]]:
    """Return the processes, descriptors and files in `folder` that there are besides this one."""
    gc.collect()  # what ran before may have left descriptors to it, which would end in between
    me = psutil.Process()
    until = time.monotonic() + 3.0  # for the fork server to bury its children
    while len(me.children(recursive=True)) > len(me.children()) and time.monotonic() < until:
        time.sleep(0.02)
    return {
        "processes": {str(process) for process in (*me.children(recursive=True), *_marked())},
        "descriptors": {*_descriptors()},
        "files": {path.name for path in folder.iterdir()},
    }


def _descriptors() -> Iterator[str]:
    """Yield the number of each descriptor of this process, and what it is of."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            yield f"{link.name} of {link.readlink()}"


def _marked() -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(os.getpid()):
                yield process
