"""Where the ranks of a group meet: in a file on one machine, in a store across several."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.ranks.launch import wire

if TYPE_CHECKING:
    from pytest_precision._torch import Store


@dataclass(frozen=True, slots=True)
class FileRendezvous:
    """In a file that all see.

    Attributes:
        file: that torch keeps the store in.
        world_size: number of processes.
    """

    file: Path
    world_size: int

    def store(self, seconds: float) -> Store:
        """The store, whose operations wait up to `seconds` for the others."""
        import torch.distributed as dist

        store = dist.FileStore(str(self.file), self.world_size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=seconds))
        return store


@dataclass(frozen=True, slots=True)
class StoreRendezvous:
    """In a part of a store that another process serves.

    Attributes:
        address: of the store.
        port: of the store.
        prefix: of the keys of this meeting.
    """

    address: str
    port: int
    prefix: str

    def store(self, seconds: float) -> Store:
        """The store, whose operations wait up to `seconds` for it and for the others."""
        import torch.distributed as dist

        store = _store(self.address, self.port, timeout=timedelta(seconds=seconds))
        return dist.PrefixStore(self.prefix, store)  # type: ignore[attr-defined]


class ServedStore:
    """A store that this process serves, as long as this object lives.

    It asks nobody who he is, as all that torch connects with: what lies in it is where ranks
    listen, and no secret. Locks of a file may hold on one machine only, so that a file is none.

    Args:
        address: of this machine, the only one that it listens at.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        with wire.listen(address) as server:
            self._port = server.getsockname()[1]
            self._store = _store(
                address, self._port, is_master=True, master_listen_fd=server.detach()
            )

    def rendezvous(self, prefix: str) -> StoreRendezvous:
        """A meeting of its own in this store."""
        return StoreRendezvous(self._address, self._port, prefix)


def _store(address: str, port: int, **options: Any) -> Store:
    import torch.distributed as dist

    return dist.TCPStore(address, port, wait_for_workers=False, **options)  # type: ignore[attr-defined]
