"""Nothing that matters is silent: a sample of `ci/bench/seen.py`, which ci/nightly runs whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from slack import START

BENCH = Path(__file__).parents[3] / "ci" / "bench"
SAMPLE = ["AveragedModel", "StepLR"]
BLIND = """
import sys
from pytest_precision.recorders.scripts.model_copies import Copies
Copies.observe = lambda self: iter(())
sys.path.insert(0, sys.argv.pop(1))
import seen
sys.exit(seen.main())
"""
"""Runs the bench with a recorder that does not see averages."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python; return how it ended."""
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=3 * START
    )


def rows(printed: str) -> list[tuple[str, ...]]:
    """Return name and numbers of each row of a table."""
    return re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", printed, re.M)


def test_every_leaf_that_matters_is_red_or_named() -> None:
    """Whatever is changed in what a loop can reach, and whatever one side never advances."""
    ended = run(str(BENCH / "seen.py"), "--only", *SAMPLE)
    found = rows(ended.stdout)
    assert [row[0] for row in found] == [*SAMPLE, *SAMPLE], ended.stderr
    assert all(int(row[2]) > 10 and int(row[3]) > 10 for row in found), ended.stdout
    assert [row[5] for row in found] == ["0"] * len(found), ended.stdout
    assert ended.returncode == 0


def test_what_a_blind_recorder_does_not_see_is_silent() -> None:
    """So that no silent leaf means that all are seen: averages are hidden here, and found."""
    ended = run("-c", BLIND, str(BENCH), "--only", "AveragedModel", "--every", "7", "--verbose")
    change, absence = rows(ended.stdout)
    assert int(change[5]) > 0 < int(absence[5]), ended.stdout + ended.stderr
    silent = re.findall(r"^  silent: (.+)$", ended.stdout, re.M)
    assert all("average" in what for what in silent), silent
    assert ended.returncode == 1
