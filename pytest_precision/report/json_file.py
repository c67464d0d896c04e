"""Write the file `report.json` (schema 1) so that it is valid at any moment, even after a kill.

The cells are encoded once, kept in memory and joined into a temporary file next to `report.json`,
which then replaces it in one step: a reader finds either the whole old file or the whole new one.
Each write takes time in proportion to the file, so writing after every test would cost the square
of the number of cells. Therefore a write waits until writing has taken at most one
`WRITING_SHARE`-th of the time. With a few hundred cells, the file is still written after every
test. A timer does a write that had to wait, so that the file has the results of all cells before a
long or hanging one.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_precision._destination import head_of
from pytest_precision._folder_owners import lives
from pytest_precision._interrupts import postponed
from pytest_precision.parity.plain_data import as_plain
from pytest_precision.report.provenance import differing
from pytest_precision.report.report_files import JSON_NAME, is_report, report_in, unusable

SCHEMA_VERSION = 1

WRITING_SHARE = 20
"""Writing takes at most one in this many seconds. The file is never older than this many times the
duration of the last write (20 times 25 ms at 10,000 cells)."""


class JsonFile:
    """The file report.json in one folder, written after each test.

    Args:
        folder: folder of the file; it is made if it does not exist.
        environment: versions, device and flags; `world_sizes` and `ranks` (the settings pinned on
            them) are added from the cells.
        clock: returns the time in seconds.
        option: the option that names the folder, for messages.
        force: see `Destination`.
        passed: seconds that what it reports has taken before.

    Attributes:
        path: path of the file.
        planned: number of cells that are to run; None as long as it is unknown.
        problem: why a cell is not in the file, or why the last write failed; empty if all is well.

    Raises:
        pytest.UsageError: the folder cannot be written to, or has a report.json of another tool.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        option: str = "--precision-report",
        force: bool | None = None,
        passed: float = 0.0,
    ) -> None:
        self._destination = report_in(folder, force)
        self.path = self._destination.path
        self.planned: int | None = None
        self.problem = self._lost = ""
        self._environment = environment
        self._world_sizes: set[int] = set()
        self._ranks: dict[str, Mapping[str, str]] = {}
        self._cells: dict[Hashable, bytes] = {}
        self._clock = clock
        self._due = clock()
        self._started = self._due - passed
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            # Otherwise the file of an earlier session would pass for the result of a session that
            # is killed in its first cell.
            self._write(0.0, finished=False)
        except OSError as error:
            raise unusable(folder, option, error) from error

    def put(self, key: Hashable, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add or replace a test's entries in report.json; write it now or after a short delay.

        Entries that cannot be written are left out, which `problem` says.
        """
        entries = list(entries)
        with self._lock:
            try:
                self._keep(key, entries)
            except Exception as error:  # whatever it is, the tests go on
                self.problem = self._lost = f"{self.path} lacks {key}: {_why(error)}"
                return
            wait = self._due - self._clock()
            if wait <= 0:
                self._try_to_write(finished=False)
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._catch_up)
                self._timer.daemon = True
                self._timer.start()

    def _keep(self, key: Hashable, entries: Sequence[Mapping[str, Any]]) -> None:
        encoded = b",\n".join(encode(_lean(entry)) for entry in entries)
        sides = [side for entry in entries for side in entry.get("environment", {}).values()]
        ranks = {repr(sorted(side.items())): side for side in sides}
        sizes = {entry["axes"].get("world_size") for entry in entries} - {None}
        self._cells[key] = encoded
        self._ranks |= ranks
        self._world_sizes |= sizes

    def plan(self, cells: int) -> None:
        """Set in report.json how many tests of the matrix will run, and write the file."""
        with self._lock:
            self.planned = cells
            self._try_to_write(finished=False)

    def close(self, *, finished: bool = True) -> None:
        """Write report.json for the last time, and in it whether all planned tests ran.

        Args:
            finished: whether all planned cells ran.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._try_to_write(finished=finished and not self._lost)

    def _catch_up(self) -> None:
        with self._lock:
            # Cancelled by `close` while it waited for the lock: the final file stands.
            if self._timer is threading.current_thread():
                self._try_to_write(finished=False)

    def _try_to_write(self, *, finished: bool) -> None:
        """Write report.json; keep an error for the summary instead of ending the tests."""
        self._timer = None
        start = self._clock()
        try:
            self._write(start - self._started, finished=finished)
            self.problem = self._lost
        except Exception as error:  # as above
            self.problem = f"{self.path} could not be written: {_why(error)}"
        end = self._clock()
        self._due = end + (WRITING_SHARE - 1) * (end - start)

    def _write(self, seconds: float, *, finished: bool) -> None:
        environment = {**self._environment, "world_sizes": sorted(self._world_sizes)}
        if self._ranks:
            environment["ranks"] = [self._ranks[key] for key in sorted(self._ranks)]
        head = {
            "schema": SCHEMA_VERSION,
            "finished": finished,
            "planned": self.planned,
            "seconds": seconds,
            "environment": environment,
        }
        cells = b",\n".join(self._cells.values())
        text = encode(head)[:-1] + b', "cells": [\n' + cells + b"\n]}\n"
        with (
            postponed(),  # a second Ctrl-C would come while the first one cleans up
            self._destination.placed() as partial,
            partial.open("wb") as file,
        ):
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _lean(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Remove a report entry's versions and variables that candidate and reference share."""
    unlike = differing(entry.get("environment", {}))
    others = {name: value for name, value in entry.items() if name != "environment"}
    return others | ({"environment": unlike} if unlike else {})


def _why(error: Exception) -> str:
    """Return the message of an error; of an OSError, without the path."""
    strerror = getattr(error, "strerror", None)
    return strerror or f"{type(error).__name__}: {error}"


def encode(value: Mapping[str, Any]) -> bytes:
    """Encode a dict as strict JSON in one ASCII line, of what `as_plain` makes of its values."""
    return json.dumps(as_plain(value), allow_nan=False).encode("ascii")


def _sweep(folder: Path) -> None:
    """Remove temporary files of report.json that pytest processes left when they were killed."""
    for left in folder.glob(f"{JSON_NAME}.partial*"):
        process = left.suffix.removeprefix(".partial").partition("-")[0]
        if process.isdecimal() and not lives(int(process)) and _is_partial(left):
            left.unlink(missing_ok=True)


def _is_partial(path: Path) -> bool:
    """Return whether a file has a report or nothing, so that no other tool made it."""
    try:
        head = head_of(path)
    except OSError:  # gone, or no file
        return False
    return not head or is_report(head)
