"""Recordings made with `--lines` name the line that made the first wrong value."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from marked_lines import marked

from pytest_precision.__main__ import main

pytestmark = pytest.mark.slow

LOOP = Path(__file__).with_name("loop.py")


def record(out: Path, wrong: str, *options: str) -> Path:
    words = ["record", "--out", str(out), "--steps", "3", *options, "--", str(LOOP), wrong]
    subprocess.run([sys.executable, "-m", "pytest_precision", *words], check=True)
    return out


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the script that clips otherwise, with its operations."""
    return record(tmp_path_factory.mktemp("recordings") / "ours", "clip", "--lines")


def compared(candidate: Path, reference: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["compare", str(candidate), str(reference)]) == 1
    return capsys.readouterr().out


def test_two_logs_name_the_line(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the one with the other constants, whatever the script is started with."""
    said = compared(ours, record(tmp_path / "theirs", "nothing", "--lines"), capsys)
    line = f"loop.py:{marked(LOOP, 'clip')}"
    assert f"{line}: the reference multiplied by 0.3 here, this by 100.0" in said
    assert 0 < (ours / "operations0.json").stat().st_size < 1024 * operations(ours)


def operations(folder: Path) -> int:
    return len(json.loads((folder / "operations0.json").read_text())["operations"])


def test_without_a_log_the_command_is_named_that_makes_one(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is the same; a line says what to run."""
    said = compared(ours, record(tmp_path / "theirs", "nothing"), capsys)
    assert "first wrong value" not in said
    command = f"python -m pytest_precision record --out DIR --steps 3 --lines -- {LOOP}"
    assert f"record with: {command}" in said


def test_a_damaged_log_is_a_damaged_recording(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is sealed as the other files are."""
    damaged = tmp_path / "damaged"
    shutil.copytree(ours, damaged)
    log = damaged / "operations0.json"
    log.write_text(log.read_text().replace("aten", "atem", 1))
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(damaged), str(damaged)])
    assert "damaged" in capsys.readouterr().err
