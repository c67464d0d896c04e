"""A runner for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner import Runner


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A machine without a GPU."""
    return Runner(tmp_path / "workspace", tmp_path / "programs")
