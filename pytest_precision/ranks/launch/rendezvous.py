"""Rendezvous of a launch: how its processes find each other, in a folder that all of them see.

Each but the first leaves word where it listens, with the key that its callers must prove to have:
who has it can give orders there. So the folder and all in it are this user's alone, and no key
passes through a store or over a network. A process that will hold no rank leaves word why.
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
from pytest_precision.errors import RefusedError
from pytest_precision.ranks.launch.launch import Launch

MEET_SECONDS = 300.0
"""For all processes of a launch to come: some collect from a slower disk than others."""
NOTICE_SECONDS = 10.0
"""After which somebody is told who is waited for."""
PAUSE_SECONDS = 0.05
"""Between two looks into the folder."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host is called.

    Attributes:
        rank: in the launch.
        node: number of its node.
        devices: that its environment shows to CUDA.
        address: that it listens at.
        port: that it listens at.
        key: that its callers must have, and that it has itself, in hexadecimal digits.
        name: for people: process and machine.
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
        """The address of this process."""
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        return cls(launch.rank, launch.node, devices, address, port, key.hex(), _name())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a process will hold no rank.

    Attributes:
        name: of the process, for people.
        reason: a traceback, or a sentence.
    """

    name: str
    reason: str


class LaunchRendezvous:
    """The words of the processes of a launch.

    Args:
        launch: whose processes meet.

    Attributes:
        launch: as given.
        folder: that the words lie in.

    Raises:
        PermissionError: the folder is somebody else's.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._shared = SharedFolder(_folder_of(launch))
        self.folder = self._shared.path

    def register(self, address: Address) -> None:
        """Leaves word where this process is called."""
        self._write({"address": asdict(address)})

    def refuse(self, reason: str) -> None:
        """Leaves word that this process will hold no rank."""
        self._write({"refusal": asdict(Refusal(_name(), reason))})

    def find(self, rank: int) -> Address | None:
        """Where the process of that rank is called; None while it has left no word.

        Raises:
            RefusedError: it will hold no rank.
        """
        try:
            word = json.loads(self._file(rank).read_bytes())
        except FileNotFoundError:
            return None
        if "address" in word:
            return Address(**word["address"])
        refusal = Refusal(**word["refusal"])
        raise RefusedError(f"rank {rank}, {refusal.name}, holds no rank: {refusal.reason}")

    def wait(
        self,
        arrived: Callable[[], bool],
        missing: Callable[[], str],
        tell: Callable[[str], object],
    ) -> None:
        """Asks `arrived` until it is true.

        Args:
            arrived: whether all have come.
            missing: says who is waited for.
            tell: hears, once, that it takes long.

        Raises:
            ConnectionError: it is not true within `MEET_SECONDS`.
        """
        started, told = time.monotonic(), False
        while not arrived():
            waited = time.monotonic() - started
            if waited > MEET_SECONDS:
                raise ConnectionError(
                    f"expected {missing()} within {MEET_SECONDS:g} s; {self.advice}"
                )
            if waited > NOTICE_SECONDS and not told:
                tell(f"precision: waits up to {MEET_SECONDS:g} s for {missing()}; {self.advice}")
                told = True
            self._shared.touch()
            time.sleep(PAUSE_SECONDS)

    @property
    def advice(self) -> str:
        """What may be wrong where a process does not come."""
        return (
            f"all processes must see the folder {self.folder} (set TMPDIR to one on a shared "
            "filesystem) and be given the same command line and files; where "
            f"{self.launch.launcher} did not start this process, unset {self.launch.sign}"
        )

    def withdraw(self) -> None:
        """Takes back the word of this process."""
        with contextlib.suppress(OSError):
            self._file(self.launch.rank).unlink()

    def close(self) -> None:
        """Removes all words, once all have met."""
        self._shared.remove()

    def _write(self, word: dict[str, object]) -> None:
        # Whole or not at all: others may look at any time.
        descriptor, name = tempfile.mkstemp(dir=self.folder)  # which is of mode 0600
        with open(descriptor, "w") as file:
            json.dump(word, file)
        Path(name).replace(self._file(self.launch.rank))

    def _file(self, rank: int) -> Path:
        return self.folder / _file_of(rank)


def forget(launch: Launch) -> None:
    """Take back what this process's place has left in an earlier launch of the same name.

    Where torchrun starts several nodes, that is the name of every launch with the same endpoint: a
    process would stop for an error that was mended since.
    """
    with contextlib.suppress(OSError):  # mostly, there was no earlier one
        (SharedFolder.place(_folder_of(launch)) / _file_of(launch.rank)).unlink()


def _folder_of(launch: Launch) -> str:
    digest = hashlib.sha256(launch.name.encode()).hexdigest()[:16]
    return f"launch-{os.getuid()}-{digest}"


def _file_of(rank: int) -> str:
    return f"rank{rank}.json"


def _name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
