"""What a watched run has shown to be wrong, and how the run answers to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from pytest_precision._visible import visible
from pytest_precision.errors import InputMessage, WatchError, expected_but_got, named
from pytest_precision.trace.rank_place import RankPlace

BATCH = "batch"
"""Kind of the inputs of the model, which two ranks may not share."""

ON_MISMATCH = ("raise", "report")


class Mismatch(NamedTuple):
    """What a watched run has shown to be wrong.

    Attributes:
        step: number of the train step after whose update it was seen.
        kind: of the tensor, as in a recording: `final_grad`, `exp_avg`, `param`, `rng`; or `batch`.
        name: of the tensor.
        ranks: those that deviate; all that have the tensor where no more than half of them agree.
        others: the ranks that agree; none where no more than half do.
        repeated: whether this rank deviates from itself, by a second run of forward and backward.
    """

    step: int
    kind: str
    name: str
    ranks: tuple[RankPlace, ...]
    others: tuple[int, ...] = ()
    repeated: bool = False

    def __str__(self) -> str:
        places = " and ".join(map(str, self.ranks))
        if self.repeated:
            words = f"{self.kind} of {self.name} on {places} has other bits in a second run"
        elif self.kind == BATCH:
            words = f"{places} have the same batch"
        elif self.others:
            several = "s" if len(self.others) > 1 else ""
            agreeing = ", ".join(map(str, self.others))
            words = (
                f"{self.kind} of {self.name} on {places} is not that of rank{several} {agreeing}"
            )
        else:
            words = f"{self.kind} of {self.name} differs between {places}"
        return visible(f"step {self.step}: {words}")


OnMismatch = Literal["raise", "report"] | Callable[[Mismatch], object]
"""How a run answers: it ends, says it and goes on, or calls a function on every rank."""


def expect_answer(on_mismatch: object) -> None:
    """Raise unless this says how a run answers to a mismatch.

    Raises:
        ValueError: it does not.
    """
    if not callable(on_mismatch) and on_mismatch not in ON_MISMATCH:
        expected = "'raise', 'report' or a function of a mismatch"
        raise ValueError(expected_but_got(expected, named("on_mismatch", on_mismatch)))


def answer(on_mismatch: OnMismatch, mismatches: Iterable[Mismatch], *, speaks: bool) -> None:
    """Answer to what was seen wrong.

    Args:
        on_mismatch: how.
        mismatches: what was seen; in a run that ends, the first one ends it.
        speaks: whether this rank says it, where it is said.

    Raises:
        WatchError: the run is to end.
    """
    for mismatch in mismatches:
        if callable(on_mismatch):
            on_mismatch(mismatch)
        elif on_mismatch == "raise":
            raise WatchError(InputMessage(mismatch))
        elif speaks:
            print(f"pytest_precision: {mismatch}", file=sys.stderr, flush=True)
