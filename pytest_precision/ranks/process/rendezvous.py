"""Rendezvous of a group: its ranks meet in a file on one machine, in a TCP store across several."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.ranks.launch import wire

if TYPE_CHECKING:
    from pytest_precision._torch.distributed import Store


@dataclass(frozen=True, slots=True)
class FileRendezvous:
    """A way for ranks to find each other: a file that all of them can see.

    Attributes:
        file: file in which torch keeps the store.
        world_size: number of processes.
    """

    file: Path
    world_size: int

    def store(self, seconds: float) -> Store:
        """Return torch's file store of the process group; its operations wait at most `seconds`."""
        import torch.distributed as dist

        store = dist.FileStore(str(self.file), self.world_size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=seconds))
        return store


@dataclass(frozen=True, slots=True)
class StoreRendezvous:
    """A way for ranks to find each other: keys with one prefix in a store that a process serves.

    Attributes:
        address: address of the store.
        port: port of the store.
        prefix: prefix of the keys of this rendezvous.
    """

    address: str
    port: int
    prefix: str

    def store(self, seconds: float) -> Store:
        """Return torch's TCP store with this key prefix; its operations wait up to `seconds`."""
        import torch.distributed as dist

        store = _store(self.address, self.port, timeout=timedelta(seconds=seconds))
        return dist.PrefixStore(self.prefix, store)  # type: ignore[attr-defined]


class ServedStore:
    """A store that this process serves while the object lives.

    Like all stores of torch, it does not authenticate clients; it holds the addresses of ranks and
    no secret. A file cannot replace it, since file locks may not hold across machines.

    Args:
        address: address of this machine, the only one at which the store listens.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        with wire.listen(address) as server:
            self._port = server.getsockname()[1]
            self._store = _store(
                address, self._port, is_master=True, master_listen_fd=server.detach()
            )

    def rendezvous(self, prefix: str) -> StoreRendezvous:
        """Return address, port and key prefix with which ranks use this store."""
        return StoreRendezvous(self._address, self._port, prefix)


def _store(address: str, port: int, **options: Any) -> Store:
    import torch.distributed as dist

    return dist.TCPStore(address, port, wait_for_workers=False, **options)  # type: ignore[attr-defined]


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a free port that torch can listen at while the block runs.

    Meanwhile the kernel gives it to nobody who asks for any free port: it is bound here, and no
    socket listens at it. Whoever asks for this port gets it if both sides allow its reuse, as
    torch's stores do. Only Linux does so; elsewhere another process may take it at any time.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("", 0))
        port = int(reservation.getsockname()[1])
        if sys.platform != "linux":
            reservation.close()
        yield port
