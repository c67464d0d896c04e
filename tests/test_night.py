"""What runs at night alone has a guard by day, and what takes long says why."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from night_tables import ALL_TESTS, expect_rows, expect_whole, moved

TABLES = sorted((Path(__file__).parent / "night").glob("*.toml"))

MOST = 0.15
"""Part of all tests that may run at night alone."""

MOST_LONG = 12
"""Tests that may take over ten seconds of processor."""


def rows() -> list[dict[str, Any]]:
    """Return the rows of all tables."""
    return [row for table in TABLES for row in moved(table)]


@pytest.fixture
def tests(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """All tests that pytest has collected, also those of the night."""
    if request.config.args != request.config.getini("testpaths"):
        pytest.skip("holds for all tests together: run ci/test without arguments")
    return request.config.stash[ALL_TESTS]


def test_each_row_is_whole() -> None:
    """A row has its columns, and says in words which rule it is about."""
    assert rows()
    expect_whole(rows())


def test_what_runs_at_night_has_a_guard_by_day(tests: list[pytest.Item]) -> None:
    """Each test of the night has one row, and the guard of each row runs by day."""
    night = [test for test in tests if test.get_closest_marker("nightly")]
    assert len(night) <= MOST * len(tests)
    expect_rows(rows(), tests, attrgetter("nodeid"))


def test_what_takes_long_says_why(tests: list[pytest.Item]) -> None:
    """A test over ten seconds has a reason in its mark, and there are few of them by day."""
    by_day = [test for test in tests if not test.get_closest_marker("nightly")]
    marks = {test.nodeid: test.get_closest_marker("long") for test in by_day}
    reasons = {name: mark.kwargs.get("reason", "") for name, mark in marks.items() if mark}
    assert all(reason.endswith(".") for reason in reasons.values()), reasons
    assert len(reasons) <= MOST_LONG, [*reasons]
