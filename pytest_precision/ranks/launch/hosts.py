"""Start ranks, from rank 0, in the processes that torchrun or srun has started."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from pytest_precision.errors import WorldSizeError
from pytest_precision.ranks.handle import Rank
from pytest_precision.ranks.launch import wire
from pytest_precision.ranks.launch.launch import SERVED, Launch
from pytest_precision.ranks.launch.launch_folder import Address, LaunchRendezvous
from pytest_precision.ranks.launch.remote import RemoteRank, Start
from pytest_precision.ranks.launch.serve import Goodbye, Hello, Welcome
from pytest_precision.ranks.process.process import RankProcess
from pytest_precision.ranks.process.rendezvous import FileRendezvous, ServedStore, StoreRendezvous
from pytest_precision.ranks.process.worker import Membership


@dataclass(frozen=True, slots=True)
class Host:
    """Another process that torchrun or srun started, which starts ranks for the controlling one.

    Attributes:
        address: address for calls to it.
        control: connection to it; the host ends when this is closed.
        ahead: seconds by which its monotonic clock is ahead of this process's; 0 if the difference
            is within the error of the measurement.
    """

    address: Address
    control: Connection
    ahead: float


class Hosts:
    """All processes that torchrun or srun started together, of which this one is the first.

    Args:
        launch: this process's place in it.
        tell: called with a message if a process takes long to arrive.

    Attributes:
        launch: as given.

    Raises:
        RefusedError: a process cannot hold a rank.
        ConnectionError: a process did not arrive or does not answer.
    """

    def __init__(self, launch: Launch, tell: Callable[[str], object]) -> None:
        self.launch = launch
        self._hosts: dict[int, Host] = {}
        self._failures: dict[int, OSError] = {}
        self._hosts_rendezvous = LaunchRendezvous(launch)
        self._hosts_rendezvous.wait(self._missing_ranks, self._in_words, tell)
        self._hosts_rendezvous.close()
        others = {rank: host.address for rank, host in self._hosts.items()}
        self._places = {0: Address.here(launch, "", 0, b""), **others}
        os.environ[SERVED] = launch.name
        self._before = dict(os.environ)

    def start(self, membership: Membership) -> Rank:
        """Start a rank in the launched process that has the rank's number, and return its handle.

        A group of fewer ranks than processes uses the processes with the lowest numbers.

        Raises:
            WorldSizeError: the launch has fewer processes than the group has ranks.
            RankError: that process is gone.
        """
        if membership.world_size > self.launch.world_size:
            started = f"since {self.launch.launcher} started {self.launch.world_size}"
            raise WorldSizeError(membership.world_size, self.launch.world_size, started)
        number = membership.rank
        places = [self._places[rank] for rank in range(membership.world_size)]
        rank_place = places[number]
        node_places = [place for place in places if place.node == rank_place.node]
        nodes = [*dict.fromkeys(place.node for place in places)]
        master = membership.master
        if master is not None and len(nodes) > 1:
            master = replace(master, address=self.launch.address)
        placed_membership = replace(
            membership,
            local_rank=node_places.index(rank_place),
            local_world_size=len(node_places),
            # Slurm's --gpus-per-task shows each process its own GPU alone.
            sharing=sum(place.devices == rank_place.devices for place in node_places),
            rendezvous=self._rendezvous(membership, places),
            node=nodes.index(rank_place.node),
            nodes=len(nodes),
            master=master,
        )
        if number == 0:
            return RankProcess(placed_membership)
        host = self._hosts[number]
        try:
            line = _connection_to(host.address)
        except OSError as error:
            whose = f"its {host.address.name}, which {self.launch.launcher} started,"
            raise placed_membership.not_started(
                "died", f"{whose} does not answer: {error}"
            ) from error
        return RemoteRank(line, Start.of(placed_membership, self._before), host.ahead)

    def close(self, status: int) -> None:
        """Send this process's exit status to all other processes that torchrun or srun started.

        They leave after it: a launcher that sees a process fail ends all remaining ones.
        """
        for host in self._hosts.values():
            with contextlib.suppress(OSError):  # it is gone already
                host.control.send(Goodbye(status))

    def _missing_ranks(self) -> list[int]:
        """Connect to the processes that have come; return the ranks of those that have not."""
        for rank in range(1, self.launch.world_size):
            address = None if rank in self._hosts else self._hosts_rendezvous.find(rank)
            if address is not None:
                try:
                    self._hosts[rank] = _greeted_host(address)
                except (ConnectionRefusedError, ConnectionAbortedError) as error:
                    # The address may be from an earlier launch of this name; a new one may follow.
                    self._failures[rank] = error
        return [rank for rank in range(1, self.launch.world_size) if rank not in self._hosts]

    def _in_words(self, ranks: list[int]) -> str:
        """Return ranks that have not come in words, with what kept them."""
        failures = "".join(
            f" (rank {r}: {self._failures[r]})" for r in ranks if r in self._failures
        )
        size, launcher = self.launch.world_size, self.launch.launcher
        return f"rank {', '.join(map(str, ranks))} of {size} of {launcher} to come{failures}"

    def _rendezvous(
        self, membership: Membership, places: list[Address]
    ) -> FileRendezvous | StoreRendezvous:
        if len({place.node for place in places}) == 1:
            return membership.rendezvous
        return self._store.rendezvous(membership.folder.name)

    @functools.cached_property
    def _store(self) -> ServedStore:
        # It listens at the address by which the other nodes reach this one.
        nodes = {place.node: place for place in self._places.values()}
        del nodes[self.launch.node]
        return ServedStore(wire.own_address(next(iter(nodes.values())).address))


def _connection_to(address: Address) -> Connection:
    return wire.dial(address.address, address.port, bytes.fromhex(address.key))


def _greeted_host(address: Address) -> Host:
    control = _connection_to(address)
    sent_at = time.monotonic()
    control.send(Hello())
    if not control.poll(wire.CONNECT_SECONDS):
        whose = f"rank {address.rank}, {address.name},"
        raise ConnectionError(f"{whose} does not answer; look at its output")
    welcome: Welcome = control.recv()
    answered = time.monotonic()
    ahead = welcome.clock - (sent_at + answered) / 2
    return Host(address, control, ahead if abs(ahead) > answered - sent_at else 0.0)
