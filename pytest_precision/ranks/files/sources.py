"""Sources: the files that ranks have read, with digests, to notice when one has changed.

What is computed again from the same sources is the same; what was computed from others is stale.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

NOT_THERE = "absent"
"""Digest of a file that was looked for and not found."""

READ_EACH_TIME = 1 << 20
"""Files of up to so many bytes are read whenever they are compared. A larger one is not while its
status is the same, which must be older than `SETTLED_NS` so that a write in the same tick shows."""
SETTLED_NS = 2 * 10**9

COMPARED_BYTES = 64 << 20
"""Most bytes of a file that is compared; what a larger one said is unknown later."""
COMPARED_FILES = 4000
"""Most files that are compared for one group of ranks."""

READ_BYTES = 1 << 20

_settled: dict[str, tuple[tuple[int, ...], str]] = {}


class UndigestedError(OSError):
    """A file's content cannot be compared; the message says why."""


def content_of(path: str) -> str:
    """Return a short text that identifies a file's content, or the names in a folder.

    Raises:
        UndigestedError: it is too large, is no regular file, or cannot be read.
    """
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            names = "\0".join(sorted(os.listdir(path)))
            return f"folder {xxhash.xxh3_128_hexdigest(os.fsencode(names))}"
        if not stat.S_ISREG(status.st_mode):
            raise UndigestedError(f"it read {path}, which is no regular file")
        if status.st_size > COMPARED_BYTES:
            raise UndigestedError(f"it read {path}, which has more than {COMPARED_BYTES >> 20} MiB")
        return _content(path, status)
    except (FileNotFoundError, NotADirectoryError):
        return NOT_THERE
    except UndigestedError:
        raise
    except OSError as error:
        raise UndigestedError(f"it read {path}, which cannot be compared: {error}") from error


def _content(path: str, status: os.stat_result) -> str:
    times = status.st_mtime_ns, status.st_ctime_ns
    identity = (status.st_dev, status.st_ino, status.st_size, *times)
    known, found = _settled.get(path, ((), ""))
    if known == identity:
        return found
    content = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            content.update(chunk)
    found = content.hexdigest()
    if status.st_size > READ_EACH_TIME and time.time_ns() - max(times) > SETTLED_NS:
        _settled[path] = identity, found
    return found


class Seen(NamedTuple):
    """The files that one rank read and wrote in one function call.

    Attributes:
        read: each file that it read, with its digest and the time when it was first opened.
        made: each file and folder that it made or emptied, with the time.
        unseen: why this may be not all that it depends on.
        by_relative_name: whether a name depended on the current directory.
    """

    read: Mapping[str, tuple[str, float]]
    made: Mapping[str, float]
    unseen: tuple[str, ...]
    by_relative_name: bool


@dataclass
class Sources:
    """The files that the ranks of a group read in all of their function calls.

    Attributes:
        digests: of each file when it was read; files that the same job had made are left out.
        unseen: why that may be not all, each reason once.
        directories: those in which a file was read by a relative name.
    """

    digests: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)

    def take_in(self, ranks: Iterable[Seen], directory: str) -> None:
        """Add to this record the files that the ranks have read in one function call."""
        ranks = list(ranks)
        made = [seen.made for seen in ranks]
        for seen in ranks:
            self.unseen.update(dict.fromkeys(seen.unseen))
            if seen.by_relative_name:
                self.directories.add(directory)
            for path, (found, when) in seen.read.items():
                if not any(was_made(path, when, by_one) for by_one in made):
                    self._note(path, found)
        if len(self.digests) > COMPARED_FILES:
            self.unseen[f"it read more than {COMPARED_FILES} files"] = None

    def add(self, others: Sources) -> None:
        """Add to this record the files that another group of ranks has read."""
        for path, found in others.digests.items():
            self._note(path, found)
        self.unseen.update(others.unseen)
        self.directories |= others.directories

    def hold(self) -> bool:
        """Return whether all files that ranks read are known and have not changed since."""
        return not self.unseen and self.unchanged()

    def unchanged(self) -> bool:
        """Return whether the known files that were read still have the same content."""
        if self.directories - {_current()}:
            return False
        try:
            return all(content_of(path) == found for path, found in self.digests.items())
        except UndigestedError:
            return False

    def _note(self, path: str, found: str) -> None:
        if self.digests.setdefault(path, found) != found:
            self.unseen[f"{path} changed while it ran"] = None


def import_path() -> tuple[str, tuple[str, ...]]:
    """Return the working directory and `sys.path` of this process: where imports are looked up."""
    return _current(), tuple(sys.path)


def _current() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def was_made(path: str, when: float, made: Mapping[str, float]) -> bool:
    """Return whether `made` says that a rank made a file, or its folder, before the time `when`."""
    while made:
        if made.get(path, when) < when:
            return True
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    return False
