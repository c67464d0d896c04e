"""The project's own workflow: it is red where its command fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from runner import Runner

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize(("job", "command"), [("test", ".ci/run"), ("wheel", "ci/wheel")])
def test_a_job_is_its_command(runner: Runner, job: str, command: str, status: int) -> None:
    """The same that people run in their checkout, without arguments."""
    file = runner.workspace / command
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\necho "$0 has $# arguments"; exit {status}\n')
    file.chmod(0o755)
    assert runner.job("ci.yml", job) is (status == 0)
    assert runner.log == f"{command} has 0 arguments\n"


@pytest.mark.parametrize("red", ["", "test", "stacks"])
def test_the_command_is_red_with_either_suite(tmp_path: Path, red: str) -> None:
    """Frameworks are installed beside the tests; their own tests say whether that worked."""
    for name in ("ci/test", "ci/stacks", "bin/chromium", ".ci/run"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        # The set-up, which is told an argument, always fails.
        status = 3 if name == f"ci/{red}" else 0
        file.write_text(
            f"#!/bin/sh\necho {name} $# >> {tmp_path}/log\n[ $# = 0 ] && exit {status}\n"
        )
        file.chmod(0o755)
    file.write_text((ROOT / ".ci" / "run").read_text())
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run([file], env={**os.environ, "PATH": path}, timeout=60, check=False)
    assert ended.returncode == (3 if red else 0)
    ran = set((tmp_path / "log").read_text().splitlines()) - {"ci/stacks 1"}
    assert ran == ({"ci/test 0"} if red == "test" else {"ci/test 0", "ci/stacks 0"})
