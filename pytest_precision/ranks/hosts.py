"""Hosts: the controller's side of a launch, whose other processes each hold one rank of a group."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_precision.launch import SERVED, Launch
from pytest_precision.ranks import wire
from pytest_precision.ranks.environment import Environment
from pytest_precision.ranks.errors import RankError, WorldSizeError
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.process import RankProcess
from pytest_precision.ranks.remote import RemoteRank, Start
from pytest_precision.ranks.roll import Address, meeting_of, roll_of
from pytest_precision.ranks.serve import Goodbye, Hello, Welcome
from pytest_precision.ranks.worker import Membership


@dataclass(frozen=True, slots=True)
class Host:
    """Another process of the launch.

    Attributes:
        address: where it is called.
        control: the connection that it lives as long as.
        ahead: seconds that its monotonic clock is ahead of the one here; 0 where that may be an
            error of measurement.
    """

    address: Address
    control: Connection
    ahead: float


class Hosts:
    """All processes of a launch, of which this one is the first.

    Args:
        launch: this process's place in it.

    Attributes:
        launch: as given.

    Raises:
        ConnectionError: a process did not come or does not answer.
        NotADirectoryError: they do not share a temporary folder.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._roll = roll_of(launch)  # the store ends with it
        self._key, addresses = self._roll.call()
        self._places = {0: Address.here(launch, "", 0), **addresses}
        os.environ[SERVED] = launch.name
        self._before = dict(os.environ)
        self._hosts: dict[int, Host] = {}
        with tempfile.NamedTemporaryFile(prefix="pytest-precision-token-") as file:
            token = secrets.token_bytes(16)
            file.write(token)
            file.flush()
            for rank, address in addresses.items():
                self._hosts[rank] = self._greeted(address, Path(file.name), token)

    def start(self, membership: Membership) -> Rank:
        """Starts a rank in the process of that number, of a group of the first ones.

        Raises:
            WorldSizeError: there are not so many.
            RankError: that process is gone.
        """
        if membership.world_size > self.launch.world_size:
            started = f"since {self.launch.launcher} started {self.launch.world_size}"
            raise WorldSizeError(membership.world_size, self.launch.world_size, started)
        number = membership.rank
        places = [self._places[rank] for rank in range(membership.world_size)]
        own = places[number]
        here = [place for place in places if place.node == own.node]
        placed = replace(
            membership,
            local_rank=here.index(own),
            local_world_size=len(here),
            # Slurm's --gpus-per-task shows each process its own GPU alone.
            sharing=sum(place.devices == own.devices for place in here),
            meeting=meeting_of(self.launch, membership.folder.name),
        )
        if number == 0:
            return RankProcess(placed)
        host = self._hosts[number]
        try:
            line = wire.dial(host.address.address, host.address.port, self._key)
        except OSError as error:
            raise RankError(
                f"rank {number} of {membership.world_size} in the start of the group died: its "
                f"{host.address.name}, which {self.launch.launcher} started, does not answer: "
                f"{error}",
                number,
                "died",
            ) from error
        declared = Environment(frozenset(), placed.environment.declared)
        start = Start(replace(placed, environment=declared), self._changes(placed.environment))
        return RemoteRank(line, start, host.ahead)

    def close(self, status: int) -> None:
        """Tells all other processes with which exit status this one will leave.

        They leave after it: a launcher that sees one of them fail ends all that are still there.
        """
        for host in self._hosts.values():
            with contextlib.suppress(OSError):  # it is gone already
                host.control.send(Goodbye(status))

    def _greeted(self, address: Address, file: Path, token: bytes) -> Host:
        control = wire.dial(address.address, address.port, self._key)
        asked = time.monotonic()
        control.send(Hello(file))
        if not control.poll(wire.CONNECT_SECONDS):
            raise ConnectionError(f"rank {address.rank}, {address.name}, does not answer")
        welcome: Welcome = control.recv()
        answered = time.monotonic()
        if welcome.token != token:
            raise NotADirectoryError(
                f"expected a temporary folder that all processes of {self.launch.launcher} see but "
                f"got TMPDIR={tempfile.gettempdir()!r}, where rank {address.rank}, {address.name}, "
                "does not find what rank 0 writes; set TMPDIR to a folder on a shared filesystem"
            )
        ahead = welcome.clock - (asked + answered) / 2
        return Host(address, control, ahead if abs(ahead) > answered - asked else 0.0)

    def _changes(self, environment: Environment) -> dict[str, str | None]:
        """What has changed in the environment here since the processes met."""
        now = dict(environment.caller)
        names = self._before.keys() | now.keys()
        return {n: now.get(n) for n in sorted(names) if self._before.get(n) != now.get(n)}
