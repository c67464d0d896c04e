"""Resources: the rank groups and recordings of one session, opened at first use."""

from __future__ import annotations

import contextlib

from pytest_precision.options import Settings
from pytest_precision.ranks.launch.hosts import Hosts
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.process.process import RankProcess
from pytest_precision.ranks.process.server import ensure_running
from pytest_precision.trace.cache import TraceCache


class Resources:
    """The rank processes and cached recordings that the tests of a session share.

    Args:
        hosts: the processes of a launch, which start all ranks; without them, ranks run on this
            machine.
    """

    def __init__(self, hosts: Hosts | None = None) -> None:
        self._start = RankProcess if hosts is None else hosts.start
        self._ranks: dict[tuple[str, str, int], RankPool] = {}
        self._traces: TraceCache | None = None

    def ranks(self, settings: Settings) -> RankPool:
        """Return the pool of rank processes for these options, which is kept between tests."""
        if not self._ranks and settings.ranks != "inline":
            # It imports torch while this process does, which takes seconds in each.
            with contextlib.suppress(OSError):  # the start of the ranks says why
                ensure_running(settings.preload)
        device = _device(settings.device)
        key = settings.ranks, device, settings.ranks_per_device
        if key not in self._ranks:
            self._ranks[key] = RankPool(
                settings.ranks,
                settings.timeout,
                device,
                self._start,
                settings.ranks_per_device,
                preload=settings.preload,
            )
        return self._ranks[key]

    @property
    def traces(self) -> TraceCache:
        """The cache of recordings that candidates and references made in this session."""
        if self._traces is None:
            self._traces = TraceCache()
        return self._traces

    def close(self) -> None:
        """End all ranks, and remove the cached recordings; further calls do nothing."""
        while self._ranks:
            self._ranks.popitem()[1].close()
        if self._traces is not None:
            self._traces.close()
            self._traces = None


def _device(setting: str) -> str:
    if setting != "auto":
        return setting
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
