"""Name a rank with the host and the device on which it runs."""

from __future__ import annotations

import socket
from typing import NamedTuple

import torch


class RankPlace(NamedTuple):
    """A rank, and where it runs.

    Attributes:
        rank: its number.
        host: name of the machine; empty if nobody has said it.
        device: as torch names it, such as `cuda:1`.
        serial: UUID of a GPU; empty of a CPU.
    """

    rank: int
    host: str
    device: str
    serial: str = ""

    @classmethod
    def of_process(cls, rank: int, device: torch.device) -> RankPlace:
        """Return where this process runs, which computes on a device."""
        serial = ""
        if device.type == "cuda":
            serial = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        return cls(rank, socket.gethostname(), str(device), serial)

    @property
    def with_serial(self) -> str:
        """Return the place in words, with the UUID of a GPU."""
        return f"{self}{f' {self.serial}' * bool(self.serial)}"

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.host, self.device)))
        return f"rank {self.rank} ({place})" if place else f"rank {self.rank}"
