"""Coordinate the processes of a torchrun launch that run the same command, one per rank."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision.ranks.launch.launch_folder import MEET_SECONDS
from pytest_precision.ranks.process.rendezvous import reserved_port

if TYPE_CHECKING:
    from pytest_precision._torch.distributed import Store

SECONDS = 86400
"""Time that ranks wait for each other: a rank that waits records nothing, another one trains."""

_PREFIX = "pytest-precision/"


class Peers:
    """The processes of a torchrun launch that run one command together, or this process alone.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._store = _store(self.rank) if self.world_size > 1 else None

    def agree(self, key: str, make: Callable[[], str]) -> str:
        """Call `make` on rank 0 only, and return its result on all ranks that pass this `key`.

        Raises:
            Exception: on rank 0 whatever `make` raises; `SystemExit` on the others.
        """
        if self._store is None:
            return make()
        if self.rank == 0:
            try:
                answer = make()
            except BaseException:
                self._store.set(f"{_PREFIX}{key}", "")
                raise
            self._store.set(f"{_PREFIX}{key}", f"={answer}")
            return answer
        message = self._store.get(f"{_PREFIX}{key}").decode()
        if not message:
            tell_launcher("rank 0 says above why")
            raise SystemExit(2)
        return message[1:]

    def tell(self, key: str, status: int) -> None:
        """Report this rank's exit status to the other ranks, under a key that all of them know."""
        if self._store is not None:
            self._store.set(f"{_PREFIX}{key}/{self.rank}", str(status))
            self._store.add(f"{_PREFIX}{key}/failed", int(status != 0))

    def any_failed(self, key: str) -> bool:
        """Return whether any rank has reported a failure under this key."""
        return self._store is not None and self._store.add(f"{_PREFIX}{key}/failed", 0) > 0

    def statuses(self, key: str, status: int) -> list[int]:
        """Wait until all ranks have reported a status; return the statuses in rank order."""
        if self._store is None:
            return [status]
        ranks = range(self.world_size)
        return [int(self._store.get(f"{_PREFIX}{key}/{rank}")) for rank in ranks]

    @contextmanager
    def environment(self, key: str) -> Iterator[dict[str, str]]:
        """Yield environment variables for new processes, one per rank, to form a process group."""
        if self._store is None:
            yield {}
            return
        with ExitStack() as stack:
            port = self.agree(f"{key}/port", lambda: str(stack.enter_context(reserved_port())))
            # The store of this launch has the keys of its own ranks.
            yield {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}


def tell_launcher(text: str) -> None:
    """Have the report with which torchrun ends a failed launch end with a text.

    That report is the last thing on the screen, and takes thirty lines. Elsewhere nothing is done.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        message = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):  # the verdict is printed, too
            Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")


def _store(rank: int) -> Store:
    import torch.distributed as dist

    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store: Store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not served,
        timeout=timedelta(seconds=MEET_SECONDS),
        wait_for_workers=False,
    )
    store.set_timeout(timedelta(seconds=SECONDS))
    return store
