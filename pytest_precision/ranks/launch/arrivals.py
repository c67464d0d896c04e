"""Who has come to a torchrun launch, by the store of the launch itself.

The store has no key: whoever reaches its port reads and writes it. So it carries the names of hosts
alone, which tell nodes without a shared disk from nodes that are late, and no address to call at.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pytest_precision.ranks.launch.launch import Launch
from pytest_precision.ranks.process.rendezvous import StoreRendezvous

if TYPE_CHECKING:
    from pytest_precision._torch.distributed import Store

STORE_SECONDS = 10.0
"""Time to reach the store."""
ASK_SECONDS = 1.0
"""Pause between two questions to the store, which all processes of a launch ask."""


class Arrivals:
    """The processes of a launch that wait for others, each with its host.

    Args:
        launch: launch whose processes meet, on several nodes; only torchrun has a store.
    """

    def __init__(self, launch: Launch) -> None:
        self._rank = launch.rank
        self._since: dict[int, tuple[float, str]] = {}
        self._asked = float("-inf")
        self._store: Store | None = None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            prefix = f"pytest-precision/{launch.name}"
            meeting = StoreRendezvous(launch.address, int(os.environ["MASTER_PORT"]), prefix)
            with suppress(RuntimeError):  # torch's errors of connections are such
                self._store = meeting.store(STORE_SECONDS)

    def announce(self) -> None:
        """Write the host of this process into the store, once its note is in its folder."""
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(str(self._rank), socket.gethostname())

    def unseen(self, ranks: list[int], seconds: float) -> dict[int, str]:
        """Return the hosts of those of `ranks` that announced themselves that long ago, by rank."""
        looked = time.monotonic()
        if looked - self._asked < ASK_SECONDS:
            return {}
        self._asked = looked
        for rank in ranks:
            if rank not in self._since and (host := self._host(rank)) is not None:
                self._since[rank] = looked, host
        return {
            rank: self._since[rank][1]
            for rank in ranks
            if rank in self._since and looked - self._since[rank][0] > seconds
        }

    def _host(self, rank: int) -> str | None:
        """Return the host of a rank that has come; None if it has not, or nobody can know."""
        if self._store is not None:
            with suppress(RuntimeError):
                if self._store.check([str(rank)]):
                    host: bytes = self._store.get(str(rank))
                    return host.decode(errors="replace")
        return None
