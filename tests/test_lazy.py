"""Names of a package that are imported when first used, and what becomes of renamed ones."""

from __future__ import annotations

import pytest

from pytest_precision import RankError, _lazy


def test_an_old_name_works_and_names_the_new_form() -> None:
    """The warning is at the line that uses it; whoever lists names sees the new one alone."""
    homes = {"errors": ("RankError",)}
    found, names = _lazy.exports("pytest_precision", homes, {"RankFailure": "RankError"})
    words = (
        r"^pytest_precision\.RankFailure will be removed in the next minor version; "
        r"write pytest_precision\.RankError$"
    )
    with pytest.warns(DeprecationWarning, match=words) as told:
        assert found("RankFailure") is RankError
    assert told[0].filename == __file__
    assert found("RankError") is RankError
    assert len(told) == 1
    assert names() == ["RankError"]
    with pytest.raises(AttributeError, match="has no attribute 'RankFailures'; it has RankError"):
        found("RankFailures")
