"""A variant: what one run does otherwise than the usual one, and what is recorded of it."""

from __future__ import annotations

import pickle
from pkgutil import resolve_name

import pytest

from pytest_precision.recorders import run_modes
from pytest_precision.recorders.run_modes import OF_LAYOUTS, OF_SCRIPTS, layout_recorder
from pytest_precision.recorders.variant import USUAL, Mode, Variant
from pytest_precision.trace.moment import LogRequest


def test_a_run_has_the_changes_of_its_side_and_its_own() -> None:
    """So that a noisy run of a bare side is bare, and one number takes the place of another."""
    bare = Variant(gradients=False, bare=True, noise=1)
    noisy = Variant(noise=2, updates=False)
    assert noisy.over(bare) == Variant(noise=2, gradients=False, updates=False, bare=True)
    assert USUAL.over(bare) == bare.over(USUAL) == bare


@pytest.mark.parametrize(
    ("variant", "perturbed"),
    [
        (USUAL, False),
        (Variant(gradients=False, updates=False, bare=True), False),
        (Variant(delays=1), True),
        (Variant(ends_only=True), True),
        (Variant(noise=1), True),
        (Variant(start=1), True),
    ],
)
def test_what_is_done_to_a_run_perturbs_it(variant: Variant, perturbed: bool) -> None:
    """All ranks agree on it, also those that are in time: each is told the same."""
    assert pickle.loads(pickle.dumps(variant)).is_perturbed is perturbed


@pytest.mark.parametrize(
    ("variant", "mode"),
    [
        (Variant(noise=1, bare=True), Mode.TRACE),
        (Variant(logged=LogRequest(0, 1)), Mode.LOG),
        (Variant(beside_exact=True), Mode.BESIDE_EXACT),
    ],
)
def test_a_variant_says_what_is_recorded(variant: Variant, mode: Mode) -> None:
    """A trace, unless it asks for something in its place."""
    assert variant.mode is mode
    assert layout_recorder(variant.mode).__name__ == OF_LAYOUTS[mode].partition(":")[2]


def test_every_name_of_a_recorder_is_one_of_the_package() -> None:
    """A name in a text breaks when its function moves, and no type checker sees it."""
    names = [*OF_LAYOUTS.values(), *OF_SCRIPTS.values(), run_modes.DELAYS]
    assert {*OF_LAYOUTS} == {*Mode}
    assert all(callable(resolve_name(f"pytest_precision.{name}")) for name in names)
