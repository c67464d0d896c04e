"""The traces of a session: where they lie, and which of them can be used again."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from pytest_precision._folders import OwnFolder
from pytest_precision.ranks.state.sources import Sources

KEPT_BYTES = 1 << 30
"""Bytes on disk that kept traces may take; the least recently used one is removed first."""


@dataclass(frozen=True)
class KeptTrace:
    """A trace that may be used again.

    Attributes:
        folder: where it lies.
        files: its files and their sizes, which show whether any was removed.
        sources: what was read for it.
        lasts: whether the cache keeps it; one that it does not is dropped by whoever asked for it.
    """

    folder: Path
    files: dict[Path, int]
    sources: Sources
    lasts: bool

    @property
    def is_current(self) -> bool:
        """Whether it is there, and would be the same if it were recorded now."""
        return _sizes(self.folder) == self.files and self.sources.hold()

    @property
    def bytes(self) -> int:
        """Bytes that it takes on disk."""
        return sum(self.files.values())


class TraceCache:
    """Folders of recorded traces, kept by what they were recorded from until the session ends.

    Attributes:
        lock: to be held while a kept folder is read, since keeping another one may remove it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._home = OwnFolder("traces-")
        self._kept: OrderedDict[Hashable, KeptTrace] = OrderedDict()

    def record(self, record: Callable[[Path], Sources]) -> tuple[Path, Sources]:
        """Return a folder that `record` has filled, which the caller drops, and what it returned.

        Raises:
            Exception: whatever `record` raises; the folder is removed then.
        """
        self._home.restore()  # somebody may have emptied the temporary folder
        folder = Path(tempfile.mkdtemp(dir=self._home.path))
        try:
            return folder, record(folder)
        except BaseException:
            self.drop(folder)
            raise

    def keep(self, key: Hashable, record: Callable[[Path], Sources]) -> KeptTrace:
        """Return the trace kept under `key`, filled by `record` unless it is there and current."""
        kept = self._kept.pop(key, None)
        if kept is None or not kept.is_current:
            if kept is not None:
                self.drop(kept.folder)
            folder, sources = self.record(record)
            kept = KeptTrace(folder, _sizes(folder), sources, sources.hold())
        if kept.lasts:
            self._kept[key] = kept
        while sum(one.bytes for one in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
            self.drop(self._kept.popitem(last=False)[1].folder)
        return kept

    def drop(self, folder: Path) -> None:
        """Remove one folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all folders."""
        self._kept.clear()
        self._home.close()


def _sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
