"""Exchange what watched ranks hold, in a process group of its own on the host."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pytest_precision._torch.distributed import default_store, group_timeout
from pytest_precision.errors import WatchError, expected_but_got
from pytest_precision.trace.rank_place import RankPlace

ARRIVED = "pytest_precision/watch/{rank}"
"""Key in the store by which ranks have met, for how many exchanges a rank has come to."""


def own_place(device: torch.device) -> RankPlace:
    """Return where this process runs, and its rank in the default process group; 0 without one."""
    in_group = dist.is_available() and dist.is_initialized()
    return RankPlace.of_process(dist.get_rank() if in_group else 0, device)


class RankLink:
    """The ranks of the default process group, for exchanges of a few bytes.

    It is made by all ranks at once. Nothing of the loop's own groups is used, whatever the device,
    and none of its collectives can be mistaken for one of these.

    Args:
        device: on which this rank trains.

    Attributes:
        rank: of this process.
        places: all ranks, and where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self._timeout = group_timeout()
        self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        self._exchanges = 0
        self.places = [RankPlace(rank, "", "") for rank in range(dist.get_world_size(self._group))]
        self.places = self.gather(own_place(device), 0)

    def gather_words(self, words: list[int], step: int) -> list[list[int]]:
        """Return the 64-bit words of all ranks, as many on each.

        Raises:
            WatchError: a rank does not come.
        """
        sent = torch.tensor(words, dtype=torch.int64)
        received = [torch.empty_like(sent) for _ in self.places]
        self._exchange(received, sent, step, dist.all_gather)
        return [tensor.tolist() for tensor in received]

    def gather(self, part: Any, step: int) -> list[Any]:
        """Return what each rank gives.

        Raises:
            WatchError: a rank does not come.
        """
        received = [None] * len(self.places)
        self._exchange(received, part, step, dist.all_gather_object)
        return received

    def close(self) -> None:
        """Leave the group, unless the loop has left all of them."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)

    def _exchange(self, received: list[Any], sent: Any, step: int, collective: Any) -> None:
        self._exchanges += 1
        # In the store, so that whoever waits in vain can say for whom.
        default_store().set(ARRIVED.format(rank=self.rank), str(self._exchanges))
        try:
            collective(received, sent, group=self._group)
        except RuntimeError as error:
            raise WatchError(self._absent(step)) from error

    def _absent(self, step: int) -> str:
        """Return in words which ranks have not come to the exchange that failed."""
        others = [place for place in self.places if place.rank != self.rank]
        absent = [str(place) for place in others if self._exchanges > self._arrived(place)]
        return expected_but_got(
            f"all ranks at the comparison after step {step}",
            f"none of {' and '.join(absent) or 'a process that has ended since'}",
            f"it has ended, makes other collectives than the rest, or takes longer than the "
            f"{self._timeout.total_seconds():g} s that a process group waits",
        )

    def _arrived(self, place: RankPlace) -> int:
        """Return the number of exchanges to which a rank has come, 0 if nobody can say."""
        store, key = default_store(), ARRIVED.format(rank=place.rank)
        try:
            return int(store.get(key)) if store.check([key]) else 0
        except RuntimeError:  # the process of the store has ended, too
            return 0
