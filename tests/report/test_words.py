"""Words: counts and times."""

from __future__ import annotations

import pytest

from pytest_precision.report.status import count, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (240, "4 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_duration(seconds, text):
    """A time has the unit that a person would choose."""
    assert duration(seconds) == text


def test_count():
    """One thing is singular."""
    assert (count(1, "cell"), count(0, "cell"), count(2, "cell")) == (
        "1 cell",
        "0 cells",
        "2 cells",
    )
