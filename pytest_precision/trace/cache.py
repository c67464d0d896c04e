"""Where the traces of a session lie, and which of them can be used again."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from pytest_precision._folders import OwnFolder

KEPT_BYTES = 1 << 30
"""Disk that kept traces may take; the one used longest ago goes first."""


class TraceCache:
    """Folders of recorded traces, kept by what they were recorded from until the session ends.

    Attributes:
        lock: to be held while a kept folder is read, since keeping another one may remove it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._home = OwnFolder("traces-")
        self._kept: OrderedDict[Hashable, tuple[Path, int]] = OrderedDict()

    def record(self, record: Callable[[Path], None]) -> Path:
        """A folder that `record` has filled; the caller drops it when it is done with it.

        Raises:
            Exception: of `record`; the folder is gone then.
        """
        self._restore()
        folder = Path(tempfile.mkdtemp(dir=self._home.path))
        try:
            record(folder)
        except BaseException:
            self.drop(folder)
            raise
        return folder

    def keep(self, key: Hashable, record: Callable[[Path], None]) -> Path:
        """The folder kept under `key`, filled by `record` if there is none yet."""
        self._restore()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        folder = self.record(record)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self._kept[key] = folder, size
        while sum(size for _, size in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
            _, (oldest, _) = self._kept.popitem(last=False)
            self.drop(oldest)
        return folder

    def _restore(self) -> None:
        if self._home.restore():  # somebody has emptied the temporary folder
            self._kept.clear()

    def drop(self, folder: Path) -> None:
        """Remove one folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all of them."""
        self._kept.clear()
        self._home.close()
