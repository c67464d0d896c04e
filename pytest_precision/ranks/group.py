"""Group: what the pool asks of a backend."""

from __future__ import annotations

from typing import Any, Protocol

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.job import Job


class Group(Protocol):
    """N ranks with one process group among them, that run one job after the other.

    Whatever `run` raises, the group is used up: its caller kills it and opens another one.

    Attributes:
        late: modules of the user's own that the last job imported while it ran. No later job would
            find them as they were then, so the group serves no other one.
    """

    late: tuple[ImportPath, ...]

    def serves(self, timeout: float) -> bool:
        """Whether all ranks are there, and a job may take `timeout` seconds on them."""

    def run(self, job: Job, timeout: float) -> list[Any]:
        """The results of `job`, called once on every rank, in rank order.

        Raises:
            RankError: a rank failed, or `timeout` seconds have passed.
        """

    def close(self) -> None:
        """Lets idle ranks leave, and ends what does not leave in time. May be called again."""

    def kill(self) -> None:
        """Ends all ranks now, busy or not. May be called again."""
