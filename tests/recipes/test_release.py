"""A recipe holds for the releases that it was tested with, and says so where it does not."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from pytest_precision.recipes import expect_release


def test_the_release_tested_with_and_its_patches_fit() -> None:
    """A recipe names the beginning of a version, up to a dot."""
    major, minor, *_ = version("torch").split(".")
    expect_release("torch", f"{major}.{minor}")


@pytest.mark.parametrize("tested", ["1.99", "2.1"])
def test_another_release_is_refused_by_name(tested: str) -> None:
    """Version 2.1 is no beginning of 2.13."""
    with pytest.raises(RuntimeError, match=rf"expected torch {tested}, .* but got torch \d"):
        expect_release("torch", tested)
