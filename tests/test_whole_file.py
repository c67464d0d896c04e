"""A file is in its place whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision._whole_file import put_whole


def test_what_cannot_be_put_leaves_nothing(tmp_path: Path) -> None:
    """A repository with baselines has no file that nobody asked for."""
    (tmp_path / "name.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        put_whole(tmp_path / "name.txt", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["name.txt"]
