"""What a probe is told of the loop that it watches."""

from __future__ import annotations

from typing import NamedTuple

from pytest_precision.matrix.cell import Cell
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import LogRequest, Window


class LoopJob(NamedTuple):
    """A run of a script, in a cell or by the command `record`.

    Attributes:
        cell: in which it runs; None of a run that `record` makes.
        window: the train steps whose values are kept; None is the whole run.
        variant: how the run differs from the usual one; None of one that `record` makes.
        logged: which tensor operations `record` logs beside the trace; None for none.
    """

    cell: Cell | None = None
    window: Window | None = None
    variant: Variant | None = None
    logged: LogRequest | None = None
