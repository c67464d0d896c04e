"""Cache of the traces that this pytest session has recorded, for use by later checks."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_precision._folders import OwnFolder
from pytest_precision.ranks.code.module_files import ModuleFile, unchanged

KEPT_BYTES = 1 << 30
"""Bytes on disk that kept traces may take; the least recently used one is removed first."""


@dataclass(frozen=True)
class KeptTrace:
    """A recorded trace that is used again, and what shows that it still may be.

    Attributes:
        folder: where it lies.
        files: its files and their sizes, which show whether any was removed.
        modules: the files of the user's modules that its ranks had imported.
        outlasts_check: whether later checks may use it.
    """

    folder: Path
    files: dict[Path, int]
    modules: frozenset[ModuleFile]
    outlasts_check: bool

    @property
    def bytes(self) -> int:
        """The size of the trace on disk, in bytes."""
        return sum(self.files.values())


class TraceCache:
    """The traces that a pytest session has recorded, looked up by the run.

    Attributes:
        lock: to be held while a kept folder is read, since the end of another check may remove it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._home = OwnFolder("traces-")
        self._kept: OrderedDict[Hashable, KeptTrace] = OrderedDict()

    @contextmanager
    def new_folder(self) -> Iterator[Path]:
        """Yield a new temporary folder for a trace; remove it if the context raises."""
        self._home.restore()  # somebody may have emptied the temporary folder
        folder = Path(tempfile.mkdtemp(dir=self._home.path))
        try:
            yield folder
        except BaseException:
            self.drop(folder)
            raise

    def find(self, key: Hashable) -> Path | None:
        """Return the folder of a kept trace whose modules are unchanged; None if there is none."""
        trace = self._kept.get(key)
        if trace is None:
            return None
        if _sizes(trace.folder) != trace.files or not unchanged(trace.modules):
            self.drop(self._kept.pop(key).folder)
            return None
        self._kept.move_to_end(key)
        return trace.folder

    def keep(
        self, key: Hashable, folder: Path, modules: Iterable[ModuleFile], *, outlasts_check: bool
    ) -> None:
        """Keep a trace for the rest of this parity check, or for all later ones, too."""
        self._kept[key] = KeptTrace(folder, _sizes(folder), frozenset(modules), outlasts_check)

    def end_check(self) -> None:
        """Remove the traces that no other check may use, and older ones where they are too many."""
        for key in [key for key, trace in self._kept.items() if not trace.outlasts_check]:
            self.drop(self._kept.pop(key).folder)
        while (
            sum(trace.bytes for trace in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1
        ):
            self.drop(self._kept.popitem(last=False)[1].folder)

    def drop(self, folder: Path) -> None:
        """Remove a trace's folder from disk."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the folders of all traces."""
        self._kept.clear()
        self._home.close()


def _sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
