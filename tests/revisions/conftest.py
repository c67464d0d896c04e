"""A repository for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository without a commit."""
    return Repository(tmp_path / "mine")
