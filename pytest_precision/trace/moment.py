"""Types for a moment of a run (operation, step, phase), and for the part to be recorded."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Moment(NamedTuple):
    """The operation, train step and phase after which something was observed.

    Attributes:
        op: index of the operation in the sequence; -1 before the first one.
        operation: its name, or `init`.
        step: number of the train step, from 1; 0 before the first one.
        phase: the phase that has just run, `init` or `END`.
    """

    op: int
    operation: str
    step: int
    phase: str


INIT = Moment(-1, "init", 0, "init")
"""Right after the layout made its engine."""


END = "end"
"""The phase after a last train step: it shows what a next step would start from."""

STATE = "optimizer_step"
"""The last phase of a train step: it shows the state that the step leaves."""

STATELESS = ("forward_backward", "reduce_grads", "clip_grads", END)
"""Phases after which the state of a run is not shown."""


class Window(NamedTuple):
    """The range of train steps whose tensor values a run stores; the run ends after the last one.

    Attributes:
        first: number of the first one; 0 is the state before any.
        last: number of the last one.
    """

    first: int
    last: int

    @classmethod
    def around(cls, step: int) -> Window:
        """Return the window from one step before a step to `SPREAD` steps after it."""
        return cls(max(0, step - 1), step + SPREAD)


SPREAD = 6
"""Number of steps after a divergence that show how it spreads; a terminal has room for them."""

EVERYTHING = Window(0, sys.maxsize)
"""All values of a run."""

BEFORE_TRAINING = Window(0, 0)
"""The segments in which no step has been trained when they begin."""


LOGGED_OPERATIONS = 200_000
"""Operations of one rank that are logged unless told otherwise."""


class LogRequest(NamedTuple):
    """Which part of a run's tensor operations is logged, and in how much detail.

    Attributes:
        op: index of the operation in the sequence; -1 is what makes the engine.
        step: train step at which that operation ends.
        pieces: into how many parts along the first dimension tensors are also digested, since
            the other side may hold shards; 1 for none.
        sketches: whether sketches of results are kept, from which relative errors can be told.
        limit: number of operations of a rank after which no more are logged.
        whole: whether the log begins with the run in place of the operation.
        rows: whether tensors are also digested row by row, since the other side may have the same
            rows in other batches.
    """

    op: int
    step: int
    pieces: int = 1
    sketches: bool = False
    limit: int = LOGGED_OPERATIONS
    whole: bool = False
    rows: bool = False
