"""Memory: how much memory ranks may use while they wait for their next job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SHARE = 0.25
"""Share of the memory that idle ranks may use."""

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container: control groups of version 2 and 1."""


def for_waiting_ranks(limits: tuple[str, ...] = LIMITS) -> int:
    """Return how many bytes idle ranks may use; xdist workers share the memory equally.

    Args:
        limits: files with the memory limits of the container; missing ones are ignored.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in limits:
        with contextlib.suppress(OSError, ValueError):  # no such control group, or "max"
            sizes.append(int(Path(file).read_text()))
    return int(min(sizes) * SHARE) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
