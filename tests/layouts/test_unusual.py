"""Right set-ups that are unusual end no check, and raise no alarm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import variations.unusual_evaluations
import variations.unusual_models  # noqa: F401
from variations.unusual import UNUSUAL, Unusual
from variations.unusual_loops import LOOPS, side

from pytest_precision import Cell, Parity

InThis = Callable[[Cell], Parity]


@pytest.fixture
def parity_here(parity_by: Callable[..., Parity]) -> InThis:
    """The fixture `parity` of a test in the given cell, in this process."""
    return partial(parity_by, ranks="inline")


# In CI, what is at the right shows it.
NIGHTLY = {
    **dict.fromkeys(("RMSprop", "ASGD", "Adadelta", "Adagrad"), "NAdam"),
    **dict.fromkeys(("RAdam", "Adamax", "Rprop"), "NAdam"),
    "plain SGD": "Nesterov",
    "clip per tensor": "clip by value",
    "torch's clip": "norm_of_norms in the catalogue",
    "no clip": "clip by value",
    "gradient noise": "one tensor scaled after the clip",
    "weight norm": "spectral norm",
    "orthogonal": "spectral norm",
    "checkpoint": "test_recomputation.py",
    "tied": "workloads.gpt",
    "SWA": "average of weights",
    "centralised gradients": "one tensor scaled after the clip",
    "for loop and foreach": "fused",
    "Adam with L2": "amsgrad",
}
LOOPS_AT_NIGHT = {
    "swa": "ema",
    "warm_up_from_0": "warm-up from 0",
    "swapped_with_gradients": "swapped",
}


def in_ci_once(entry: Unusual) -> Any:
    """Leave to the nightly run what CI has in another entry or file."""
    return pytest.param(
        entry, id=entry.name, marks=pytest.mark.nightly if entry.name in NIGHTLY else ()
    )


@pytest.mark.parametrize("entry", [*map(in_ci_once, UNUSUAL)])
def test_an_unusual_engine_is_left_alone(parity_here: InThis, entry: Unusual) -> None:
    """It agrees with its twin, and neither rule nor identity accuses it of anything."""
    verdict = parity_here(entry.cell).check(
        entry.layout, entry.twin, workload=entry.workload, oracle=entry.oracle or None
    )
    assert (verdict.oracle["candidate"].get("judged", 0) > 0) == entry.judged


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LOOPS_AT_NIGHT else ())
        for name in LOOPS
    ],
)
def test_an_unusual_loop_is_left_alone(parity_here: InThis, name: str) -> None:
    """It agrees with its twin."""
    sides = (partial(side, name=name, other=other) for other in (False, True))
    assert parity_here(Cell(sequence="train3")).check(*sides).observations > 20
