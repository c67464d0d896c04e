"""Open files: files and child processes of this process, as the Linux kernel lists them."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from itertools import chain

LIBRARIES = ("/lib", "/usr/lib", "/usr/share/")
"""Where each system has its libraries and locales."""


def readable_files() -> Iterator[str]:
    """Yield the files that this process has open for reading or mapped, without libraries."""
    for path in {*chain(_descriptors(), _mapped())}:
        is_library = ".so" in os.path.basename(path) or path.startswith(LIBRARIES)
        if path.startswith("/") and not is_library and os.path.isfile(path):
            yield path


def children_ended() -> int:
    """Return a count of ended children's page faults, which grows when a child ends."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def has_children() -> bool:
    """Return whether this process has a living child."""
    for thread in _names("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="utf-8") as children:
                if children.read():
                    return True
        except OSError:  # the thread has ended, or this kernel does not say
            continue
    return False


def _descriptors() -> Iterator[str]:
    for number in _names("/proc/self/fd"):
        try:
            with open(f"/proc/self/fdinfo/{number}", encoding="utf-8") as lines:
                flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags"))
            if flags & os.O_ACCMODE != os.O_WRONLY:
                yield os.readlink(f"/proc/self/fd/{number}")
        except (OSError, StopIteration):  # it was closed
            continue


def _mapped() -> Iterator[str]:
    try:
        with open(
            "/proc/self/maps", encoding=sys.getfilesystemencoding(), errors="surrogateescape"
        ) as maps:
            for line in maps:
                columns = line.split(maxsplit=5)
                if len(columns) == 6:
                    yield columns[5].rstrip("\n")
    except OSError:  # not Linux
        return


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # not Linux
        return []
