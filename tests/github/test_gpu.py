"""The command for machines with a GPU says at once what it lacks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_driver(tmp_path: Path) -> dict[str, str]:
    """An environment whose path has what the command needs, but no `nvidia-smi`."""
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}" if name != "bash" else "/bin/bash")
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("argument", "status", "words"),
    [
        ("", 1, "expected a GPU that nvidia-smi lists but got none"),
        ("--no-deps", 1, "expected a GPU that nvidia-smi lists but got none"),
        ("--all", 2, "expected --no-deps or --dry-run but got '--all'"),
    ],
)
def test_it_ends_before_it_installs_anything(
    without_driver: dict[str, str], argument: str, status: int, words: str
) -> None:
    """Who has no GPU is told so, and how to see the folder all the same."""
    command = [str(ROOT / "ci" / "gpu"), *filter(None, [argument])]
    ran = subprocess.run(command, env=without_driver, capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (status, "")
    assert words in ran.stderr
