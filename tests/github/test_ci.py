"""The project's own workflow: it is red where its command fails."""

from __future__ import annotations

import pytest
from runner import Runner


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
