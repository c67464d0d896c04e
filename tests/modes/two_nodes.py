"""Two nodes on one machine: a network between them, and a disk of each under one path."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import launches
import pytest

ADDRESSES = "10.213.78.1", "10.213.78.2"

LOOP = """\
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
rank, defect = dist.get_rank(), sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
draws = torch.Generator().manual_seed(rank)
for step in range(4):
    model(torch.randn(4, 64, generator=draws)).square().mean().backward()
    if rank == 1 and step == 2 and "killed" in defect:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and step == 2 and "hangs" in defect:
        time.sleep(25)
    if rank == 1 and step == 1 and "planted" in defect:
        model.module.weight.grad[3, 5] += 1e-3
    optimizer.step()
    optimizer.zero_grad()
"""
"""A loop of one rank on each node, with what its argument plants on the second."""


@dataclass(frozen=True)
class Node:
    """One of two machines that share nothing but a network.

    Attributes:
        number: 0 or 1.
        name: of its network namespace.
        interface: its end of the network.
        disk: what it sees as `common`.
        common: path of the disk on both nodes.
    """

    number: int
    name: str
    interface: str
    disk: Path
    common: Path

    @property
    def host(self) -> str:
        """Return its host name."""
        return f"node{self.number}"

    def command(self, words: list[str], mount: str = "", clock: int = 0) -> list[str]:
        """Return a command that runs `words` on this node.

        Args:
            words: command.
            mount: shell command that mounts `common`; that of its own disk by default.
            clock: seconds by which its monotonic clock is ahead.
        """
        mount = mount or f"mount --bind {self.disk} {self.common}"
        time = ["--time", "--fork", "--kill-child", f"--monotonic={clock}"] if clock else []
        host = f"echo {self.host} > /proc/sys/kernel/hostname"
        shell = f'{host} && {mount} && cd {self.common} && exec "$@"'
        space = ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", *time]
        return [*space, "sh", "-c", shell, "sh", *words]

    def variables(self) -> dict[str, str]:
        """Return the environment of the node's only rank."""
        place = launches.of_torchrun(self.number, 29_500) | {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(self.number),
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": ADDRESSES[0],
        }
        own = {"GLOO_SOCKET_IFNAME": self.interface, "TMPDIR": str(self.common)}
        return launches.clean() | place | own


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[Node]]:
    """Make two nodes below a folder; skip where this user cannot."""
    name = f"precision{os.getpid()}"
    common = folder / "common"
    common.mkdir()
    nodes = [
        Node(
            number, f"{name}-{number}", f"p{number}v{os.getpid()}", folder / f"disk{number}", common
        )
        for number in range(2)
    ]
    first, second = nodes
    link = ["ip", "link", "add", first.interface, "netns", first.name]
    steps = [
        *(["ip", "netns", "add", node.name] for node in nodes),
        [*link, "type", "veth", "peer", "name", second.interface, "netns", second.name],
    ]
    for node, address in zip(nodes, ADDRESSES, strict=True):
        inside = ["ip", "-n", node.name]
        steps.append([*inside, "addr", "add", f"{address}/30", "dev", node.interface])
        steps += [[*inside, "link", "set", link, "up"] for link in ("lo", node.interface)]
        node.disk.mkdir()
    steps.append(["unshare", "--mount", "--uts", "true"])
    with ExitStack() as undone:
        if not shutil.which("ip"):
            pytest.skip("there is no command `ip` to make network namespaces with")
        for node in nodes:
            undone.callback(subprocess.run, ["ip", "netns", "del", node.name], capture_output=True)
        for step in steps:
            if subprocess.run(step, capture_output=True).returncode:
                pytest.skip("this user cannot make a network namespace")
        yield nodes


def on_both(commands: list[list[str]], nodes: list[Node], seconds: float = 120.0) -> list[str]:
    """Run a command on each node at once; return what each has written, with its status last."""
    running = [
        subprocess.Popen(
            command,
            env=node.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command, node in zip(commands, nodes, strict=True)
    ]
    try:
        return [f"{r.communicate(timeout=seconds)[0]}\nstatus {r.returncode}" for r in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def slow_down(node: Node, bits: str) -> None:
    """Let a node send no more than so many bits a second; skip where the kernel cannot."""
    limit = ["tbf", "rate", bits, "burst", "8kb", "latency", "400ms"]
    words = ["tc", "-n", node.name, "qdisc", "add", "dev", node.interface, "root", *limit]
    if not shutil.which("tc") or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("there is no token bucket to slow a network down with")


def delayed_packets(node: Node) -> int:
    """Return how many packets of a node have waited for the limit on what it sends."""
    words = ["tc", "-n", node.name, "-s", "qdisc", "show", "dev", node.interface]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (overlimits,) = re.findall(r"overlimits (\d+)", said)
    return int(overlimits)


def stand_in_for_slurm(nodes: list[Node], folder: Path) -> dict[str, str]:
    """Write programs that run a task on each node, as srun does; return a job's variables."""
    tasks = []
    for node in nodes:
        numbers = f"SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODEID={node.number}"
        own = f"SLURM_PROCID={node.number} GLOO_SOCKET_IFNAME={node.interface}"
        tasks.append(
            f'env {numbers} {own} {shlex.join(node.command([]))} "$@" & task{node.number}=$!'
        )
    skip_options = 'while [ "${1#--}" != "$1" ]; do shift; done'
    programs = {
        "srun": [skip_options, *tasks, "wait $task0 && wait $task1"],
        "scontrol": [f"echo {address}" for address in ADDRESSES],
    }
    folder.mkdir()
    for name, lines in programs.items():
        (folder / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[0-1]"}


def record_words(out: str, *words: str) -> list[str]:
    """Return the command that records the loop on a node."""
    record = [sys.executable, "-m", "pytest_precision", "record", "--out", out, "--steps", "4"]
    return [*record, "--", "loop.py", *words]
