"""Say whether a session of pytest only plans, as with --collect-only, and calls no test."""

from __future__ import annotations

import pytest

RUNS_NOTHING = ("collectonly", "setuponly", "setupplan")
"""pytest's options under which no test is called."""


def runs_nothing(config: pytest.Config) -> bool:
    """Return whether the session only collects or plans tests."""
    return any(config.getoption(name, False) for name in RUNS_NOTHING)
