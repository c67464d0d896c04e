"""Cells that are recorded once a session of tests, whichever of its workers needs them first.

Who compares, explains or names a line needs recordings of sound layouts, and the same ones as its
neighbours. What has code of a test in it, as a planted defect has, is recorded by that test.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
from collections.abc import Callable, Hashable, Iterable
from dataclasses import astuple, dataclass, fields
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import xxhash

import pytest_precision
from pytest_precision import Parity
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.check.side import Side
from pytest_precision.ranks.code.module_files import ModuleFile
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.moment import Window

OF_PYTEST = "PYTEST_"
"""Beginning of the variables that tell the workers of a session apart."""


@cache
def digest_of(package: Path) -> str:
    """Return a digest of all source files of a package, wherever it lies."""
    digest = xxhash.xxh3_128()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def vars_of(parts: Any) -> dict[str, Any]:
    """Return the fields of a dataclass and their values."""
    return {field.name: getattr(parts, field.name) for field in fields(parts)}


@dataclass(frozen=True)
class CellKey:
    """What the bits of a recording depend on, in words that are the same in all processes.

    Attributes:
        layout: the layout and its arguments, and the one that it swaps with.
        workload: the workload and its arguments.
        cell: the cell, and the steps whose values are kept.
        settings: what else the run was told, its environment and folder among it.
        package: content of this package.
        versions: those of Python and torch.
    """

    layout: str
    workload: str
    cell: str
    settings: str
    package: str
    versions: str

    @classmethod
    def of(cls, side: Side, window: Window | None, *process: Hashable) -> CellKey:
        """Return the key of a run.

        Args:
            side: what runs.
            window: the steps whose values are kept.
            process: the folder and the import path of the process that asks.
        """
        needs, environment = vars_of(side.needs), side.needs.environment
        told = {**vars_of(side), **needs, "declared": environment.declared, "process": process}
        # Words of their own have these; a set has no order that two processes share.
        for part in ("layout", "other", "workload", "cell", "needs", "environment"):
            del told[part]
        told["variables"] = sorted(
            pair for pair in environment.caller if not pair[0].startswith(OF_PYTEST)
        )
        return cls(
            repr((side.layout, side.other)),
            repr(side.workload),
            repr((side.cell, window)),
            repr(told),
            digest_of(Path(pytest_precision.__file__).parent),
            f"{platform.python_version()} {version('torch')}",
        )

    @property
    def name(self) -> str:
        """The name of a folder of this recording's own."""
        return xxhash.xxh3_128_hexdigest(repr(astuple(self)).encode())


class RecordedCells:
    """Folders that the workers of a session share, each made by the first one that needs it.

    Args:
        home: the folder in which they lie.
    """

    def __init__(self, home: Path) -> None:
        self.home = home

    @classmethod
    def of_session(cls, factory: pytest.TempPathFactory) -> RecordedCells:
        """Return those of this session, beside the folders of its workers if it has some."""
        base = factory.getbasetemp()
        home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "recorded"
        home.mkdir(exist_ok=True)
        return cls(home)

    def find(self, name: str) -> Path | None:
        """Return the folder of a name, or None if nobody has made it yet."""
        folder = self.home / name
        return folder if folder.is_dir() else None

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder of a name; `make` fills it if no worker has done so.

        A worker that needs what another one is about to make waits for it. What was not made whole
        is made again by the next one. Nobody may change what is in the folder.
        """
        folder, unfinished = self.home / name, self.home / f"{name}.unfinished"
        with open(self.home / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder


class SharedTraces(TraceCache):
    """The traces of a session of tests, with those of sound layouts that its other workers made.

    Args:
        cells: the folders that the workers share.
    """

    def __init__(self, cells: RecordedCells) -> None:
        super().__init__()
        self.cells = cells

    def find(self, key: Hashable) -> Path | None:
        """Return the folder of a kept trace, of this worker's or a copy of another one's."""
        found = super().find(key)
        name = self._shared(key)
        if found is None and name and (theirs := self.cells.find(name)) is not None:
            with self.new_folder() as found:
                _link(theirs, found)
            super().keep(key, found, (), outlasts_check=True)
        return found

    def keep(
        self, key: Hashable, folder: Path, modules: Iterable[ModuleFile], *, outlasts_check: bool
    ) -> None:
        """Keep a trace, and give it to the other workers if its code is this package's alone."""
        super().keep(key, folder, modules, outlasts_check=outlasts_check)
        if outlasts_check and (name := self._shared(key)):
            self.cells.made(name, partial(_link, folder))

    @staticmethod
    def _shared(key: Hashable) -> str:
        """Return the name under which workers share a run; empty of one that has other code."""
        match key:
            case (Side() as side, window, *process) if not side.needs.code:
                return CellKey.of(side, window, *process).name
        return ""


def _link(folder: Path, new: Path) -> None:
    """Link all files of a trace into a new folder: neither its end nor a copy costs anything."""
    shutil.copytree(folder, new, copy_function=os.link, dirs_exist_ok=True)


class ReadRecordings(Recordings):
    """Recordings of a check both sides of which are looked up before they are recorded."""

    def _candidate_folder(self, side: Side, window: Window | None) -> Path:
        """Return the folder of a run of the candidate, which stays."""
        return self._reference_folder(side, window, "candidate")


class ParityOfRecordings(Parity):
    """The fixture `parity` of a test that is about what happens once both sides are recorded."""

    @property
    def make_recordings(self) -> MakeRecordings:
        return partial(
            ReadRecordings, ranks=self.ranks, traces=self.traces, timeout=self.settings.timeout
        )
