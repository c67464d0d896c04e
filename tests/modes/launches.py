"""The ways to start pytest: alone, with xdist, by torchrun, and as Slurm's srun does."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import pytest_precision
from pytest_precision.ranks.launch.launch import SERVED, without_launch

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:hypothesispytest")
"""Without the plugin of hypothesis, whose import takes longer than the rest of pytest."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SECONDS = 180.0
"""For one session; none of them takes so long."""


@dataclass
class Session:
    """What is left of a session.

    Attributes:
        statuses: exit status of each process that was started here, in order.
        output: of all of them.
        members: all processes that were there at some time, and are gone now.
    """

    statuses: list[int] = field(default_factory=list)
    output: str = ""
    members: set[psutil.Process] = field(default_factory=set)


def clean() -> dict[str, str]:
    """The environment of a session that knows nothing of the one that these tests run in."""
    foreign = ("RANK", "LOCAL_", "WORLD_SIZE", "PRECISION_", "PYTEST_", "SLURM_", SERVED)
    kept = {n: v for n, v in without_launch(os.environ).items() if not n.startswith(foreign)}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    root = str(Path(pytest_precision.__file__).parents[1])
    kept.update(PYTHONPATH=os.pathsep.join([root, path]), OMP_NUM_THREADS="1")
    if "PYTEST_PLUGINS" in os.environ:  # where the package is not installed
        kept["PYTEST_PLUGINS"] = os.environ["PYTEST_PLUGINS"]
    return kept


def of_srun(rank: int, job: int = 4711, nodes: int = 1) -> dict[str, str]:
    """What srun sets for one of two tasks; tests that run side by side need jobs of their own."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": str(rank * nodes // 2),
    }


def of_torchrun(rank: int, port: int) -> dict[str, str]:
    """What torchrun sets for one of two processes, of which the first listens at the port."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def commands(mode: str, *args: str) -> list[tuple[list[str], dict[str, str]]]:
    """What is started in a mode, and what is added to the environment of each process."""
    port = free_port()
    if mode == "torchrun":
        return [([*TORCHRUN, "--nproc-per-node=2", "--standalone", *PYTEST[1:], *args], {})]
    if mode == "torchrun on two nodes":
        nodes = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}"]
        return [([*TORCHRUN, *nodes, *PYTEST[1:], *args], {})] * 2
    if mode.startswith("Slurm"):
        nodes = 2 if mode == "Slurm on two nodes" else 1
        return [([*PYTEST, *args], of_srun(rank, port, nodes)) for rank in (0, 1)]
    distribution = {"plain": [], "xdist": ["-n", "1"], "two workers of xdist": ["-n", "2"]}[mode]
    return [([*PYTEST, *distribution, *args], {})]


@contextlib.contextmanager
def started(
    folder: Path, processes: list[tuple[list[str], dict[str, str]]]
) -> Iterator[tuple[Session, list[psutil.Popen]]]:
    """Starts processes in a folder; afterwards all have ended by themselves, or the test fails."""
    session = Session()
    running: list[psutil.Popen] = []
    log = folder / "output"
    try:
        with log.open("ab") as file:
            for command, added in processes:
                environment = {**clean(), **added}
                settings = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL}
                running.append(psutil.Popen(command, stdout=file, stderr=file, **settings))
        yield session, running
        deadline = time.monotonic() + SECONDS
        while any(process.poll() is None for process in running):
            assert time.monotonic() < deadline, log.read_text()
            remember(session, running)
            time.sleep(0.3)  # looking for processes is work too
        session.statuses = [process.returncode for process in running]
        session.output = log.read_text()
        _, alive = psutil.wait_procs(session.members, timeout=10)
        assert alive == []
    finally:
        for process in {*session.members, *running}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def remember(session: Session, running: list[psutil.Popen]) -> None:
    """Notes which processes there are now."""
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            session.members.update(process.children(recursive=True))


def run(folder: Path, mode: str, *args: str) -> Session:
    """A whole session in one mode."""
    with started(folder, commands(mode, *args)) as (session, _):
        pass
    return session


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
