"""Two versions of a side are compared by their distance from fp64."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.probes.accuracy.beside_fp64 import Accuracy, accuracy_lines, as_builtins
from pytest_precision.probes.accuracy.step_accuracy import BesideExact

EXACT = torch.ones(4, dtype=torch.float64)


def off(**errors: float) -> dict[str, BesideExact]:
    """Return tensors that are off by so much each."""
    return {name: BesideExact(EXACT + error, EXACT) for name, error in errors.items()}


def words(here: dict[str, BesideExact], there: dict[str, BesideExact]) -> str:
    """Return what is said about gradients."""
    return Accuracy.of(here, there).words("gradients", "HEAD~1")


def test_the_tensor_that_lost_most_is_named() -> None:
    """With its factor, which that of all tensors hides."""
    said = words(off(a=0.2, b=0.01), off(a=0.01, b=0.1))
    assert "are 0.14 of their norm from fp64 here, 0.071 at HEAD~1: 2 times as far" in said
    said = words(off(a=0.5, b=0.01), off(a=0.01, b=0.1))
    assert said.endswith("most in a, 50 times as far. The new ones are less accurate")


def test_what_is_as_good_is_no_loss() -> None:
    """Neither is what is better, nor what was exact and is."""
    assert words(off(a=0.015), off(a=0.01)).endswith("as accurate as the old ones")
    assert words(off(a=0.001), off(a=0.01)).endswith("more accurate than the old ones")
    assert words(off(a=0.0), off(a=0.0)).endswith("as accurate as the old ones")
    assert "infinitely many times as far" in words(off(a=0.1), off(a=0.0))


def test_another_computation_is_no_matter_of_rounding() -> None:
    """Where fp64 itself gives something else, for example from other weights."""
    other = {"a": BesideExact(EXACT * 2, EXACT * 2)}
    assert "it is not rounding alone that moved" in words(other, off(a=0.1))


def test_sides_with_the_same_numbers_are_said_once() -> None:
    """And one that has none says why; report.json has each."""
    one = Accuracy.of(off(a=0.1), off(a=0.2))
    found = {name: {"gradients": one, "updates": "no rule"} for name in ("candidate", "reference")}
    lines = [*accuracy_lines(found, "then")]
    assert [line.split(" of ")[0] for line in lines] == [
        "Both sides' gradients",
        "Both sides' updates",
    ]
    assert as_builtins(found)["candidate"]["gradients"]["ratio"] == pytest.approx(0.5)
    assert as_builtins(found)["reference"]["updates"] == {"silent": "no rule"}
    other = found | {"reference": {"gradients": Accuracy.of(off(a=0.3), off(a=0.2))}}
    assert [line.split()[1] for line in accuracy_lines(other, "then")] == ["candidate's"] * 2 + [
        "reference's"
    ]
