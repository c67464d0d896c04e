"""Nothing that matters is silent: a sample of `ci/bench/seen.py`, which ci/nightly runs whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from slack import START

BENCH = Path(__file__).parents[3] / "ci" / "bench" / "seen.py"
SAMPLE = ("AveragedModel",)


def test_every_leaf_that_matters_is_red_or_named() -> None:
    """Whatever is changed in what a loop can reach, after a step or after the last one."""
    command = [sys.executable, str(BENCH), "--only", *SAMPLE]
    run = subprocess.run(command, capture_output=True, text=True, timeout=3 * START)
    rows = re.findall(
        r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", run.stdout, re.M
    )
    assert tuple(row[0] for row in rows) == SAMPLE, run.stderr
    assert all(int(row[2]) > 10 and int(row[3]) > 10 for row in rows), run.stdout
    assert [row[5] for row in rows] == ["0"] * len(SAMPLE), run.stdout
    assert run.returncode == 0
