"""Environment: the variables that ranks run with, which are part of what distinguishes groups.

Many variables are read only once: by libraries when they are loaded, by CUDA when it starts, by
torch when it is imported. So a group only serves the environment that it was opened with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pytest_precision.matrix.variables import Variables
from pytest_precision.ranks.launch.launch import without_launch

OF_ONE_TEST = frozenset({"PYTEST_CURRENT_TEST"})
"""Variables that change with every test, which ranks do not get since they outlive tests."""

OF_PYTEST = "PYTEST_"
"""Beginning of the variables of pytest, of its plugins and of this one."""

_THREADS, _INTERFACE = "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"

DEFAULTS = {
    # No reduction may depend on the number of cores.
    _THREADS: "1",
    # Deterministic matrix products on a GPU need a workspace of fixed size.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # If all ranks are on one machine: its name may resolve to an address that does not answer.
    _INTERFACE: "lo",
}


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment variables of a group of ranks: the caller's, and those declared by a test.

    Attributes:
        caller: variables of the process that requests the ranks, at that moment.
        declared: variables of the layout or the cell, which override the caller's. They are set
            before the interpreter of a rank starts, so they apply to everything that it loads.
    """

    caller: frozenset[tuple[str, str]]
    declared: Variables = ()

    @classmethod
    def now(cls, declared: Variables = ()) -> Environment:
        """Return this process's environment variables, with those that a test declares."""
        caller = ((n, value) for n, value in os.environ.items() if n not in OF_ONE_TEST)
        return cls(frozenset(caller), declared)

    def declaring(self, declared_variables: Variables) -> Environment:
        """Return a copy with these variables in place of those that a test declares."""
        return replace(self, declared=declared_variables)

    @classmethod
    def changed(cls, changes: Mapping[str, str | None], declared: Variables) -> Environment:
        """Return this process's environment variables after changes; None removes a variable."""
        variables = {**os.environ, **changes}
        return cls(
            frozenset((n, value) for n, value in variables.items() if value is not None), declared
        )

    def changes_since(self, before: Mapping[str, str]) -> dict[str, str | None]:
        """Return which environment variables differ from `before`; None for removed ones."""
        variables = dict(self.caller)
        names = sorted(before.keys() | variables.keys())
        return {
            name: variables.get(name) for name in names if before.get(name) != variables.get(name)
        }

    @property
    def threads(self) -> int:
        """The number of torch's threads on a rank: 1, unless OMP_NUM_THREADS is declared."""
        declared = dict(self.declared).get(_THREADS, DEFAULTS[_THREADS])
        return int(declared.partition(",")[0])  # the entries of nested levels are not for torch

    def of_rank(
        self, rank: int, world_size: int, local_rank: int, local_world_size: int
    ) -> dict[str, str]:
        """Return all environment variables of one rank, with RANK and WORLD_SIZE."""
        defaults = [
            name for name in DEFAULTS if name != _INTERFACE or local_world_size == world_size
        ]
        place = {
            # Launchers set these, frameworks read them; the caller itself may run under a launcher.
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(local_world_size),
        }
        return self._with(defaults, dict(self.caller), place)

    def of_command(self, place: Mapping[str, str]) -> dict[str, str]:
        """Return all environment variables of a process that runs a script file as torchrun does.

        It has none of pytest's, and of our defaults only those that change no bit on one machine:
        the number of threads, as torchrun sets it, and the interface.

        Args:
            place: what torchrun tells the process of its place.
        """
        caller = {n: v for n, v in self.caller if not n.startswith(OF_PYTEST)}
        defaults = [_THREADS, _INTERFACE] if place["GROUP_WORLD_SIZE"] == "1" else [_THREADS]
        return self._with(defaults, caller, place)

    def _with(
        self, defaults: Iterable[str], caller: Mapping[str, str], place: Mapping[str, str]
    ) -> dict[str, str]:
        """Return our defaults of these names, and what goes before them: later ones win."""
        caller = without_launch(caller)
        # The user's shell sets the number of threads for a program that runs alone on the machine.
        caller.pop(_THREADS, None)
        ours = {name: DEFAULTS[name] for name in defaults}
        return {**ours, **caller, **dict(self.declared), **place}


@contextmanager
def patched(variables: Mapping[str, str], *, without: Iterable[str] = ()) -> Iterator[None]:
    """Set environment variables of this process during the block, and restore them afterwards.

    All other variables stay as they are in between, since another thread may read them.

    Args:
        variables: that are set.
        without: variables that are not there for this while.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    for name in without:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
