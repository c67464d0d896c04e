"""Roll: how the processes of a launch find each other, in the store of their launcher."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pytest_precision.launch import Launch
from pytest_precision.ranks.meeting import StoreMeeting

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # no public name

MEET_SECONDS = 300.0
"""For all processes of a launch to come: some collect from a slower disk than others."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a host is called.

    Attributes:
        rank: in the launch.
        node: number of its node.
        devices: that its environment shows to CUDA.
        address: that it listens at.
        port: that it listens at.
        name: for people: process and machine.
    """

    rank: int
    node: int
    devices: str | None
    address: str
    port: int
    name: str

    @classmethod
    def here(cls, launch: Launch, address: str, port: int) -> Address:
        """The address of this process."""
        name = f"process {os.getpid()} on {socket.gethostname()}"
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        return cls(launch.rank, launch.node, devices, address, port, name)


@dataclass(frozen=True, slots=True)
class Roll:
    """The store of a launch, as far as it is ours.

    Attributes:
        launch: whose processes meet.
        store: of the launch; it lives as long as this object where this process serves it.
    """

    launch: Launch
    store: Store

    def call(self) -> tuple[bytes, dict[int, Address]]:
        """For the controller: the key of all connections, and the other processes by rank.

        Raises:
            ConnectionError: not all have come within `MEET_SECONDS`.
        """
        key = secrets.token_bytes(32)
        self.store.set("key", key.hex())
        others = range(1, self.launch.world_size)
        found = {}
        for rank in others:
            try:
                found[rank] = Address(**json.loads(self.store.get(f"host{rank}")))
            except RuntimeError as error:  # torch's DistStoreError is one
                raise ConnectionError(
                    f"expected {self.launch.world_size} processes of {self.launch.launcher} to "
                    f"come within {MEET_SECONDS:g} s but rank {rank} did not; give all of them "
                    "the same command line and the same files"
                ) from error
        return key, found

    def join(self, address: Address) -> bytes:
        """For the others: the key, once the controller can find this process.

        Raises:
            RuntimeError: the controller has not come within `MEET_SECONDS`.
        """
        self.store.set(f"host{address.rank}", json.dumps(asdict(address)))
        return bytes.fromhex(self.store.get("key").decode())


def meeting_of(launch: Launch, what: str) -> StoreMeeting:
    """A part of the launch's store, named `what`."""
    prefix = f"pytest-precision/{launch.attempt}/{what}"
    return StoreMeeting(launch.address, launch.port, prefix)


def roll_of(launch: Launch) -> Roll:
    """The roll; the process of rank 0 serves the store where no launcher does."""
    serve = launch.serves and launch.rank == 0
    return Roll(launch, meeting_of(launch, "roll").store(MEET_SECONDS, serve=serve))
