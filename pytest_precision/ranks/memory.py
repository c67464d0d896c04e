"""Memory: how much of this machine's ranks may take while they wait for their next job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SHARE = 0.25
"""Of the memory, that ranks may take which do nothing."""

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container has less memory than its machine: control groups of version 2 and 1."""


def for_waiting_ranks(limits: tuple[str, ...] = LIMITS) -> int:
    """Return bytes: a worker of xdist has its part of them.

    Args:
        limits: files with the limits of the container, as far as they exist.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in limits:
        with contextlib.suppress(OSError, ValueError):  # no such control group, or "max"
            sizes.append(int(Path(file).read_text()))
    return int(min(sizes) * SHARE) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
