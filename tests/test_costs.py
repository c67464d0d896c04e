"""What a test is said to cost: processes below the one that runs it, and their seconds."""

from __future__ import annotations

import subprocess
import sys

from costs import Costs

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"

PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}], check=True)"


def test_processes_below_are_counted_by_kind_and_seconds() -> None:
    """Also one that another one has started; the seconds of both stay when they have ended."""
    costs = Costs()
    costs.before = costs.look()
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        costs.look()
        process.communicate(b"\n")
    assert process.returncode == 0
    found = {name: str(told) for name, told in costs.since()}
    number, seconds = found["started python"].split()
    assert number == "2"
    assert float(seconds) >= 0.3
    assert float(found["processor"]) >= 0.3
