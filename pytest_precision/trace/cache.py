"""The traces of a session: where they lie, and which of them can be used again."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

from pytest_precision._folders import OwnFolder

KEPT_BYTES = 1 << 30
"""Bytes on disk that kept traces may take; the least recently used one is removed first."""


class TraceCache:
    """Folders of recorded traces, kept by what they were recorded from until the session ends.

    Attributes:
        lock: to be held while a kept folder is read, since keeping another one may remove it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._home = OwnFolder("traces-")
        self._kept: OrderedDict[Hashable, tuple[Path, dict[Path, int]]] = OrderedDict()

    def record(self, record: Callable[[Path], None]) -> Path:
        """Return a folder that `record` has filled; the caller drops it after use.

        Raises:
            Exception: whatever `record` raises; the folder is removed then.
        """
        self._home.restore()  # somebody may have emptied the temporary folder
        folder = Path(tempfile.mkdtemp(dir=self._home.path))
        try:
            record(folder)
        except BaseException:
            self.drop(folder)
            raise
        return folder

    def keep(self, key: Hashable, record: Callable[[Path], None]) -> Path:
        """Return the folder kept under `key`, filled by `record` unless all its files are there."""
        folder, files = self._kept.pop(key, (None, {}))
        if folder is None or _sizes(folder) != files:
            folder = self.record(record)
            files = _sizes(folder)
        self._kept[key] = folder, files
        while sum(self._bytes()) > KEPT_BYTES and len(self._kept) > 1:
            _, (oldest, _) = self._kept.popitem(last=False)
            self.drop(oldest)
        return folder

    def _bytes(self) -> Iterator[int]:
        for _, files in self._kept.values():
            yield from files.values()

    def drop(self, folder: Path) -> None:
        """Remove one folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all folders."""
        self._kept.clear()
        self._home.close()


def _sizes(folder: Path) -> dict[Path, int]:
    """Return the files in a folder and their sizes, which show whether any was removed."""
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
