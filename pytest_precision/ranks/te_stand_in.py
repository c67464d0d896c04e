"""The stand-in for Transformer Engine's kernels on the CPU, of which this package knows only here.

It could be of a distribution of its own: `STAND_IN_PACKAGE` is the one name to change.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Protocol, cast

STAND_IN_PACKAGE = "pytest_precision.te"

COMPILED_MODULE = "transformer_engine_torch"
"""The module whose place the stand-in takes; its attribute `stand_in` tells the two apart."""


class StandIn(Protocol):
    """A package that puts a stand-in in the place of the compiled module.

    Attributes:
        CHANGES: patterns of the global state that it changes until the process ends.
    """

    CHANGES: tuple[str, ...]

    def refusal(self) -> str:
        """Return why the stand-in cannot run in this environment; empty if it can."""

    def install(self) -> None:
        """Install it in this process for good, or raise RuntimeError."""

    def install_without_gpu(self) -> None:
        """Install it if this process, a rank, sees no GPU, or raise RuntimeError."""


def stand_in() -> StandIn:
    """Import the stand-in."""
    return cast(StandIn, import_module(STAND_IN_PACKAGE))


def stand_in_running() -> str:
    """Return which stand-in is in use, as in "2.20.0 on the CPU"; empty if there is none.

    Nothing is imported for this.
    """
    return getattr(sys.modules.get(COMPILED_MODULE), "stand_in", "")
