"""Group: the interface of a backend that the pool uses."""

from __future__ import annotations

from typing import Any, Protocol

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.state.sources import Sources


class RankGroup(Protocol):
    """N ranks in one process group, which run one job after the other.

    After any exception from `run` the group is unusable: the caller kills it and opens another one.

    Attributes:
        late: the user's own modules that the last job imported while it ran. A later job would not
            find them in their initial state, so the group serves no other job.
        sources: what its jobs have read so far.
        room: share of the memory of the fullest of its GPUs that was free after its last job.
    """

    late: tuple[ImportPath, ...]
    sources: Sources
    room: float

    def serves(self, timeout: float) -> bool:
        """Return whether all ranks are alive and may run a job of up to `timeout` seconds."""

    def run(self, job: Job, timeout: float) -> list[Any]:
        """Call `job` once on every rank, and return the results in rank order.

        Raises:
            RankError: a rank failed, or `timeout` seconds have passed.
        """

    def close(self) -> None:
        """Let idle ranks leave, and end those that stay too long; a second call does nothing."""

    def kill(self) -> None:
        """End all ranks now, busy or not; a second call does nothing."""
