"""Recordings made with `--lines` name the line that made the first wrong value."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LOOP = Path(__file__).with_name("loop.py")


def record(out: Path, wrong: str, *options: str) -> Path:
    words = ["record", "--out", str(out), "--steps", "3", *options, "--", str(LOOP), wrong]
    subprocess.run([sys.executable, "-m", "pytest_precision", *words], check=True)
    return out


def compared(candidate: Path, reference: Path) -> str:
    words = ["compare", str(candidate), str(reference)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest_precision", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_two_logs_name_the_line(tmp_path: Path) -> None:
    """And the one with the other constants, whatever the script is started with."""
    ours = record(tmp_path / "ours", "clip", "--lines")
    theirs = record(tmp_path / "theirs", "nothing", "--lines")
    said = compared(ours, theirs)
    assert "loop.py:41: the reference multiplied by 0.3 here, this by 100.0" in said
    assert 0 < (ours / "operations0.json").stat().st_size < 1024 * operations(ours)


def operations(folder: Path) -> int:
    return len(json.loads((folder / "operations0.json").read_text())["operations"])


def test_without_a_log_the_command_is_named_that_makes_one(tmp_path: Path) -> None:
    """The verdict is the same; a line says what to run."""
    ours = record(tmp_path / "ours", "clip", "--lines")
    said = compared(ours, record(tmp_path / "theirs", "nothing"))
    assert "first wrong value" not in said
    command = f"python -m pytest_precision record --out DIR --steps 3 --lines -- {LOOP}"
    assert f"record with: {command}" in said


def test_a_damaged_log_is_a_damaged_recording(tmp_path: Path) -> None:
    """The log is sealed as the other files are."""
    ours = record(tmp_path / "ours", "clip", "--lines")
    log = ours / "operations0.json"
    log.write_text(log.read_text().replace("aten", "atem", 1))
    words = ["-m", "pytest_precision", "compare", str(ours), str(ours)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "damaged" in done.stderr
