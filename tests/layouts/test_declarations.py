"""What layouts declare of their ranks, and that a check has the environment it is called in."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from _pytest.monkeypatch import MonkeyPatch

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    PrecisionLeakWarning,
    Workload,
    layouts,
    unchecked,
    workloads,
)

ParityOn = Callable[[Cell], Parity]

ONE_STEP = Cell(sequence="train1")
SWAPPED = Cell(sequence="train1-save-swap-train1")

CALLS = 0


def faster(engine: Engine, factor: float) -> Engine:
    engine.optimizer.param_groups[0]["lr"] *= factor
    return engine


def by_variable(
    workload: Workload, cell: Cell, make: Callable[..., Engine] = layouts.adamw
) -> Engine:
    """Trains as fast as a variable says."""
    return faster(make(workload, cell), float(os.environ.get("PLANTED_RATE", "1")))


def by_call(workload: Workload, cell: Cell) -> Engine:
    """Trains faster with each call in one process."""
    global CALLS
    CALLS += 1
    return faster(layouts.adamw(workload, cell), CALLS)


def leaving(workload: Workload, cell: Cell) -> Engine:
    """Leaves a variable, as frameworks do."""
    os.environ["PLANTED_BY_LAYOUT"] = "yes"
    return layouts.adamw(workload, cell)


def check(parity: Parity, layout: Callable[..., Engine]) -> None:
    """Compare a layout with a built-in one; a leak is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecisionLeakWarning)
        parity.check(layout, layouts.ddp, workload=workloads.mlp)


def test_a_reference_is_of_the_environment_of_its_check(
    parity_alone: ParityOn, monkeypatch: MonkeyPatch
) -> None:
    """What was recorded before a test set a variable is not used after it."""
    parity = parity_alone(ONE_STEP)
    parity.check(layouts.ddp, by_variable, workload=workloads.mlp)
    monkeypatch.setenv("PLANTED_RATE", "2")
    with pytest.raises(ParityError, match="lr differs"):
        parity.check(layouts.ddp, by_variable, workload=workloads.mlp)


def test_what_a_layout_may_leave_is_no_leak(parity_alone: ParityOn) -> None:
    """By its own declaration, or by that of the session; all else it leaves still is one."""
    parity = parity_alone(ONE_STEP)
    with pytest.raises(ParityError, match="variable PLANTED_BY_LAYOUT was absent, is yes"):
        check(parity, leaving)
    check(parity, layouts.may_leave("environment variable PLANTED_*")(partial(leaving)))
    patterns = ("umask", "environment variable PLANTED_BY_LAYOUT")
    parity.settings = replace(parity.settings, may_leave=patterns)
    check(parity, leaving)
    parity.settings = replace(parity.settings, may_leave=("umask",))
    with pytest.raises(ParityError, match="PLANTED_BY_LAYOUT"):
        check(parity, leaving)


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_ranks_have_run_nothing(parity_alone: ParityOn, fresh: bool) -> None:
    """Kept ones have what the layout may leave, which is its own affair."""
    layout = layouts.may_leave("*.CALLS")(partial(by_call))
    parity = parity_alone(ONE_STEP)
    check(parity, layouts.fresh_ranks(layout) if fresh else layout)
    if fresh:
        check(parity, layout)
        return
    with pytest.raises(ParityError, match="lr differs"):
        check(parity, layout)


def test_ranks_of_its_own_make_no_other_layout(parity_alone: ParityOn) -> None:
    """Comparing a layout with itself proves nothing, wherever the two run."""
    with pytest.raises(ParityError, match="are the same layout in the same cell"):
        check(parity_alone(ONE_STEP), layouts.fresh_ranks(partial(layouts.ddp)))


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    """`fnmatch` takes a bracket that is not closed for a character, and says nothing."""
    expected = r"^expected patterns whose brackets are closed but got 'umask\[';"
    with pytest.raises(ValueError, match=expected):
        layouts.may_leave("handlers[[]0]", "umask[")


def test_after_a_swap_the_other_layout_may_leave_what_it_may(parity_alone: ParityOn) -> None:
    """The reference's ranks run the candidate too."""
    check(
        parity_alone(SWAPPED),
        layouts.may_leave("environment variable PLANTED_BY_LAYOUT")(partial(leaving)),
    )


def test_where_layouts_swap_both_have_the_variables_of_both(parity_in: ParityOn) -> None:
    """They are processes of one kind, so that all engines of a layout are alike."""
    declared = layouts.with_environment(PLANTED_RATE="2")(partial(by_variable))
    other = partial(by_variable, make=layouts.ddp)
    planted = unchecked(reason="both have the planted rate, and not the workload's")
    parity_in(SWAPPED).check(declared, other, workload=workloads.mlp, oracle=planted)
    with pytest.raises(ParityError, match="lr differs"):
        parity_in(ONE_STEP).check(declared, other, workload=workloads.mlp)
