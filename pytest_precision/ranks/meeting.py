"""Where processes meet: in a file on one machine, in the store of a launch across several."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # no public name


@dataclass(frozen=True, slots=True)
class FileMeeting:
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
class StoreMeeting:
    """In a part of a store that is there already.

    Attributes:
        address: of the store.
        port: of the store.
        prefix: of the keys of this meeting.
    """

    address: str
    port: int
    prefix: str

    def store(self, seconds: float, *, serve: bool = False) -> Store:
        """The store, whose operations wait up to `seconds` for the others.

        Args:
            seconds: of waiting; also for the store itself to be there.
            serve: whether it lives in this process, as long as the object that is returned.
        """
        import torch.distributed as dist

        store = dist.TCPStore(  # type: ignore[attr-defined]
            self.address,
            self.port,
            is_master=serve,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=serve,
        )
        return dist.PrefixStore(self.prefix, store)  # type: ignore[attr-defined]
