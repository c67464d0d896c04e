"""Environment: the variables that ranks run with, as part of what tells one group from another.

Much is read once: by libraries when they are loaded, by CUDA when it starts, by torch when it is
imported. So a group serves the environment that it was opened with, and no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pytest_precision.matrix.variables import Variables
from pytest_precision.ranks.launch.launch import plain

OF_ONE_TEST = frozenset({"PYTEST_CURRENT_TEST"})
"""What changes with every test; ranks, which outlive tests, do not have it."""

DEFAULTS = {
    # No reduction may depend on the number of cores.
    "OMP_NUM_THREADS": "1",
    # Deterministic matrix products on a GPU need a workspace of fixed size.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Where all ranks are on one machine: its name may resolve to an address that nobody answers.
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables of a group.

    Attributes:
        caller: those of the process that asks for the ranks, at that moment.
        declared: those of the layout or the cell, which beat the caller's. They are set before the
            interpreter of a rank starts, so they hold for all that it loads.
    """

    caller: frozenset[tuple[str, str]]
    declared: Variables = ()

    @classmethod
    def now(cls, declared: Variables = ()) -> Environment:
        """The environment of a group that is asked for here and now."""
        caller = ((n, value) for n, value in os.environ.items() if n not in OF_ONE_TEST)
        return cls(frozenset(caller), declared)

    def declaring(self, declared: Variables) -> Environment:
        """The same caller's, with these declared."""
        return replace(self, declared=declared)

    @classmethod
    def changed(cls, changes: Mapping[str, str | None], declared: Variables) -> Environment:
        """Those of the process itself with what has changed elsewhere; None removes a variable."""
        own = {**os.environ, **changes}
        return cls(frozenset((n, value) for n, value in own.items() if value is not None), declared)

    @property
    def threads(self) -> int:
        """Of torch on a rank: one, unless OMP_NUM_THREADS is declared."""
        declared = dict(self.declared).get("OMP_NUM_THREADS", DEFAULTS["OMP_NUM_THREADS"])
        return int(declared.partition(",")[0])  # the levels below it are not torch's

    def of_rank(
        self, rank: int, world_size: int, local_rank: int, local_world_size: int
    ) -> dict[str, str]:
        """All variables of one rank; the last two are its place among those of its machine."""
        caller = plain(dict(self.caller))
        defaults = dict(DEFAULTS)
        if local_world_size < world_size:
            del defaults["GLOO_SOCKET_IFNAME"]
        # The user's shell says how many threads a program has that is alone on the machine.
        caller.pop("OMP_NUM_THREADS", None)
        place = {
            # What launchers set, and frameworks read; the caller may itself run under a launcher.
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(local_world_size),
        }
        return {**defaults, **caller, **dict(self.declared), **place}


@contextmanager
def patched(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables of this process for a while, and gives it its own back."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
