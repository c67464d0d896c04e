"""What a machine lacks: an error says what, and what to do, and no cell fails for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import in_this_process  # noqa: F401
import pytest

SUITE = """
import os
import pytest
import torch
from pytest_precision import layouts, norm, workloads

@pytest.mark.precision_matrix(sequence=["train1"], world_size=[1])
def test_server(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)

@pytest.mark.world_size(2)
def test_network(ranks):
    ranks.run(os.getpid)

@pytest.mark.precision_matrix(sequence=["train1"], world_size=[1])
def test_comparison(parity):
    with torch.device("meta"):  # a device on which nothing can be computed
        parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp, criterion=norm(rel=0.1))
"""

NO_SERVER = """
import os, sys
if "forkserver" in sys.orig_argv[-1]:
    os._exit(3)
"""

OPTIONS = ("--precision-matrix", "--precision-device=cpu", "-p", "no:cacheprovider")

pytestmark = pytest.mark.slow

ALONE = ["unshare", "--net", "--map-root-user"]


def run(folder: Path, test: str, *before: str) -> str:
    """Run one test that fails, and return what the session says."""
    (folder / "test_suite.py").write_text(SUITE)
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    ended = subprocess.run(
        [*before, sys.executable, "-m", "pytest", *OPTIONS, "-k", test],
        cwd=folder,
        env=around,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    return ended.stdout


def test_a_fork_server_that_cannot_start(tmp_path: Path) -> None:
    """How it ended, and how to see why, instead of a connection that was refused."""
    (tmp_path / "sitecustomize.py").write_text(NO_SERVER)
    told = run(tmp_path, "test_server")
    assert "which starts ranks, has ended with exit status 3; read what it wrote with -s" in told
    assert "-c 'import pytest_precision.ranks.process.preload'" in told


def test_a_network_without_loopback(tmp_path: Path) -> None:
    """What is missing, and the command that adds it, instead of gloo's words alone."""
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"]).returncode:
        pytest.skip("this user cannot start a process without a network")
    told = run(tmp_path, "test_network", *ALONE)
    assert "raised RuntimeError: expected the network interface lo to be up" in told
    assert "`ip link set lo up`" in told


def test_a_process_that_cannot_compare(pytester: pytest.Pytester) -> None:
    """No number differs: it is an error, with torch's words and where they come from."""
    pytester.makepyfile(SUITE)
    ended = pytester.runpytest_inprocess(*OPTIONS, "-k", "test_comparison")
    assert ended.ret == pytest.ExitCode.TESTS_FAILED
    told = str(ended.stdout)
    assert "error: the comparison failed in pytest's process: " in told
    assert "1 error (E)" in told
    assert "Traceback" in told
