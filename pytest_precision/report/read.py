"""Read report.json files back into the results of their tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_precision.errors import ReportError, expected_but_got
from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.described import expect_described
from pytest_precision.report.json_file import SCHEMA_VERSION
from pytest_precision.report.lost_shards import say_lost, shards_in
from pytest_precision.report.report_files import JSON_NAME
from pytest_precision.report.status import count


@dataclass(frozen=True, slots=True)
class Report:
    """The content of one report.json: test results, environment, duration, whether it is finished.

    Attributes:
        finished: whether all planned cells ran.
        planned: number of cells that were to run; None where it was unknown.
        seconds: duration of the session; where an old report does not say it, that of all tests.
        environment: as in the file.
        cells: in the order of the files and of their matrices.
        lost_shards: of which shards a merged report has no cells, in words; empty if of none.
    """

    finished: bool
    planned: int | None
    seconds: float
    environment: Mapping[str, Any]
    cells: tuple[CellResult, ...]
    lost_shards: str = ""

    @property
    def failing(self) -> list[CellResult]:
        """The results of the tests that fail."""
        return [cell for cell in self.cells if cell.failing]

    @property
    def passing(self) -> list[CellResult]:
        """The results of the tests whose checks all passed."""
        return [cell for cell in self.cells if cell.passing]

    @property
    def ran(self) -> str:
        """A phrase on how many of the planned tests ran."""
        planned = "an unknown number" if self.planned is None else self.planned
        ran = f"{count(len(self.cells), 'cell')} of {planned} ran"
        return f"{ran}; {self.lost_shards}" if self.lost_shards else ran

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """Make a report from the content of a report.json that `read_report` returned."""
        cells = sorted(_cells(data["cells"]), key=lambda cell: cell.position)
        seconds = data.get("seconds", sum(cell.seconds for cell in cells))
        # The report of one session says nothing of the other shards.
        lost = say_lost(shards_in([data])) if "shards" in data else ""
        environment = data["environment"]
        return cls(data["finished"], data["planned"], seconds, environment, tuple(cells), lost)


def read_report(path: Path) -> dict[str, Any]:
    """Read a report.json; raise if it is missing or not as its schema describes.

    Args:
        path: the file, or its folder.

    Raises:
        ReportError: there is none, or it is not one that this release can read.
    """
    file = path if path.is_file() else path / JSON_NAME
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ReportError(
            expected_but_got("a report.json", f"{file} ({why})", "run with --precision-report=DIR")
        ) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA_VERSION:
        raise ReportError(
            expected_but_got(
                f"a report.json of schema {SCHEMA_VERSION}",
                f"{file} of schema={schema!r}",
                _for_schema(schema),
            )
        )
    # What is wrong with an entry is said now, and not by whoever needs it.
    try:
        expect_described(data)
    except (ValueError, RecursionError) as error:
        raise ReportError(
            expected_but_got(
                "entries as the schema of report.json describes them",
                f"{file} ({error})",
                "run pytest again, with --precision-report=DIR",
            )
        ) from error
    return dict(data)


def _for_schema(schema: object) -> str:
    """Return advice for a report.json of another schema."""
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        return "install the release of pytest-precision that wrote it, or a later one"
    return "write it again, with --precision-report=DIR of this release"


def _cells(entries: Iterable[Mapping[str, Any]]) -> list[CellResult]:
    """Join each test's entries into one result, or one per worker under xdist's `--dist=each`."""
    cells: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        key = entry["nodeid"], entry.get("worker", ""), repr(entry["axes"])
        cells.setdefault(key, []).append(entry)
    return [CellResult.of(test_entries) for test_entries in cells.values()]
