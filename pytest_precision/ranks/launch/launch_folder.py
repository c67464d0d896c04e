"""Rendezvous of a torchrun or srun launch: its processes find each other by files in a folder.

Each process except the first writes a note with the address at which it listens, and with the key
that callers must prove to know. Whoever has the key can run code there, so only this user can read
the folder, and no key passes through a store or over a network. A process that cannot hold a rank
writes a note with the reason.

Nodes need a folder on a shared disk. A store such as torchrun's has no key, and a rank writes into
folders of its controller besides: its output, and the states that the next group begins with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_precision._folders import SharedFolder
from pytest_precision.errors import RefusedError, expected_but_got
from pytest_precision.ranks.launch.arrivals import Arrivals
from pytest_precision.ranks.launch.launch import Launch

MEET_SECONDS = 300.0
"""Time for all processes of a launch to arrive: some collect from a slower disk than others."""
NOTICE_SECONDS = 10.0
"""Time after which a message tells which processes are missing."""
UNSEEN_SECONDS = 90.0
"""Time after which a note that was written on another node is not in this one's folder at all: a
network file system remembers for up to 60 s that a file is not there (acdirmax of NFS)."""
KEPT_SECONDS = 60.0
"""Time for which the folder stays though no process of this machine has it."""
LOOK_SECONDS = 0.05
"""Pause between two looks into the folder."""


@dataclass(frozen=True, slots=True)
class Address:
    """Host, port and key with which a process can be called.

    Attributes:
        rank: rank of the host in the launch.
        node: number of its node.
        devices: value of CUDA_VISIBLE_DEVICES in its environment; None if it is not set.
        address: address that it listens at.
        port: port that it listens at.
        key: key that both ends must prove to have, in hexadecimal digits.
        name: process and machine, for messages.
    """

    rank: int
    node: int
    devices: str | None
    address: str
    port: int
    key: str = field(repr=False)
    name: str

    @classmethod
    def here(cls, launch: Launch, address: str, port: int, key: bytes) -> Address:
        """Return the address at which the other launched processes can call this one."""
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        return cls(launch.rank, launch.node, devices, address, port, key.hex(), _name())


class LaunchRendezvous:
    """A folder of files by which the processes of a torchrun or srun launch find each other.

    Args:
        launch: launch whose processes meet.

    Attributes:
        launch: as given.
        folder: folder of the notes.

    Raises:
        PermissionError: another user owns the folder or can enter it.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._shared = SharedFolder(_folder_of(launch))
        self.folder = self._shared.path

    def register(self, address: Address) -> None:
        """Write this process's address into its file in the launch folder."""
        self._write({"address": asdict(address)})

    def refuse(self, reason: str) -> None:
        """Write into this process's file in the launch folder why it cannot hold a rank."""
        self._write({"refusal": f"{_name()}, holds no rank: {reason}"})
        self._shared.keep(KEPT_SECONDS)  # this process ends, and others may look later

    def find(self, rank: int) -> Address | None:
        """Return the address that a rank's process wrote to the launch folder; None if not yet.

        Raises:
            RefusedError: the process cannot hold a rank.
        """
        try:
            word = json.loads(self._file(rank).read_bytes())
        except FileNotFoundError:
            return None
        if "address" in word:
            return Address(**word["address"])
        raise RefusedError(f"rank {rank}, {word['refusal']}")

    def wait(
        self,
        missing: Callable[[], list[int]],
        words: Callable[[list[int]], str],
        tell: Callable[[str], object],
    ) -> None:
        """Wait until no rank is missing; raise after a limit.

        Args:
            missing: returns the ranks that have not met this process.
            words: returns ranks that are missing in words.
            tell: called once with a message if this takes long.

        Raises:
            ConnectionError: some are missing after `MEET_SECONDS`, or have come on nodes that do
                not share the folder.
        """
        started, is_announced = time.monotonic(), False
        arrivals: Arrivals | None = None
        while ranks := missing():
            waited = time.monotonic() - started
            if waited > MEET_SECONDS:
                raise ConnectionError(
                    f"expected {words(ranks)} within {MEET_SECONDS:g} s; {self.advice}"
                )
            if waited > NOTICE_SECONDS and not is_announced:
                awaited = words(ranks)
                tell(f"precision: waiting up to {MEET_SECONDS:g} s for {awaited}; {self.advice}")
                is_announced = True
                if self.launch.nodes > 1:  # one node has one folder
                    arrivals = Arrivals(self.launch)
                    arrivals.announce()
            if arrivals is not None:
                self._expect_shared(arrivals, ranks)
            if self.launch.nodes > 1:  # other nodes need not see this one's part in the lock
                self._shared.keep(KEPT_SECONDS)
            time.sleep(LOOK_SECONDS)

    def _expect_shared(self, arrivals: Arrivals, ranks: list[int]) -> None:
        """Refuse to wait on for ranks that have long come, to a folder of the same name."""
        hosts = arrivals.unseen(ranks, UNSEEN_SECONDS)
        if hosts:
            raise ConnectionError(
                expected_but_got(
                    f"a folder that all nodes of {self.launch.launcher} share",
                    f"{self.folder}: "
                    + ", ".join(f"rank {r} on {h}" for r, h in hosts.items())
                    + " waits in a folder of that name, and neither process sees the other's file",
                    "set TMPDIR to a folder on a shared disk on all nodes; without one, record "
                    "the runs with `python -m pytest_precision record`, join the nodes' folders "
                    "and compare",
                )
            )

    @property
    def advice(self) -> str:
        """Advice, for messages, on what to check if a launched process does not arrive in time."""
        return (
            f"all processes must see the folder {self.folder} (set TMPDIR to one on a shared "
            "filesystem) and be given the same command line and files; where "
            f"{self.launch.launcher} did not start this process, unset {self.launch.sign}"
        )

    def withdraw(self) -> None:
        """Remove this process's file, with its address, from the launch folder."""
        with contextlib.suppress(OSError):
            self._file(self.launch.rank).unlink()

    def close(self) -> None:
        """Remove the folder of addresses, once all launched processes have met."""
        self._shared.remove()

    def _write(self, word: dict[str, object]) -> None:
        # The note appears in one step: other processes may look at any time.
        descriptor, name = tempfile.mkstemp(dir=self.folder)  # its mode is 0600
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(word, file)
        Path(name).replace(self._file(self.launch.rank))

    def _file(self, rank: int) -> Path:
        return self.folder / _file_of(rank)


def forget(launch: Launch) -> None:
    """Remove this rank's file from an earlier torchrun or srun launch of the same name.

    With torchrun on several nodes, every launch with the same endpoint has the same name: without
    this, a process would stop because of an error that has been fixed since.
    """
    with contextlib.suppress(OSError):  # usually there was no earlier launch
        (SharedFolder.place(_folder_of(launch)) / _file_of(launch.rank)).unlink()


def _folder_of(launch: Launch) -> str:
    digest = hashlib.sha256(launch.name.encode()).hexdigest()[:16]
    return f"launch-{os.getuid()}-{digest}"


def _file_of(rank: int) -> str:
    return f"rank{rank}.json"


def _name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
