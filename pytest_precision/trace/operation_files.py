"""Write and read a rank's log of tensor operations as JSON.

What many operations have in common (names, places, values) stands in the file once, so that an
operation takes little of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_precision.errors import expected_but_got
from pytest_precision.trace.files import OWN_FILES, TraceFiles, write_whole
from pytest_precision.trace.operations import (
    CodeLine,
    Constant,
    Holding,
    LoggedArgument,
    LoggedOperation,
    OperationLog,
    Setting,
    Site,
    UserCall,
    Value,
)
from pytest_precision.trace.sealed import log_of

FORM = 4
"""Version of the file's form; another version of the package may have written another one."""

RECORD_AGAIN = "record both sides once more, with --lines"


def write_operations(log: OperationLog, folder: Path, rank: int) -> None:
    """Write a rank's log of tensor operations as JSON beside its trace."""
    values, lines, names, modules, sites, stacks = (_Interned() for _ in range(6))

    def argument(given: LoggedArgument) -> Any:
        if isinstance(given, Value):
            return values.number(given)
        return given if isinstance(given, Constant) else [values.number(one) for one in given]

    rows = [
        [
            names.number(one.name),
            [argument(given) for given in one.arguments],
            [values.number(result) for result in one.results],
            one.written,
            modules.number(one.module),
            int(one.backward),
            lines.number(one.line),
            one.sketches,
            stacks.number(one.sites),
        ]
        for one in log.operations
    ]
    content = {
        "form": FORM,
        "operations": rows,
        "given": [(*held, values.number(value)) for held, value in log.given.items()],
        "left": [(*held, values.number(value)) for held, value in log.left.items()],
        "settings": _settings(log.settings, lines, stacks),
        "restores": _settings(log.restores, lines, stacks),
        "entries": [(sites.number(s), lines.number(line), *rest) for s, line, *rest in log.entries],
        "stacks": [[sites.number(site) for site in stack] for stack in stacks.all],
        "sites": sites.all,
        "cut": log.cut,
        "pieces": log.pieces,
        "values": values.all,
        "lines": lines.all,
        "names": names.all,
        "modules": modules.all,
    }
    write_whole(path_of(folder, rank), content)


def read_operations(folder: Path, rank: int, files: TraceFiles = OWN_FILES) -> OperationLog:
    """Read the log of tensor operations that a rank wrote beside a trace.

    Raises:
        ValueError: another version of the package wrote it in another form.
        OSError: it cannot be read.
    """
    found = files.data(path_of(folder, rank))
    if found.get("form") != FORM:
        got = f"form {found.get('form', 'none')} of {folder}"
        raise ValueError(expected_but_got(f"operations in form {FORM}", got, RECORD_AGAIN))
    values = [Value(*row[:3], *map(tuple, row[3:])) for row in found["values"]]
    lines = [None if row is None else CodeLine(*row) for row in found["lines"]]
    sites = [Site(*row) for row in found["sites"]]
    stacks = [tuple(sites[one] for one in stack) for stack in found["stacks"]]

    def operation(row: list[Any]) -> LoggedOperation:
        name, arguments, results, written, module, backward, line, sketches, stack = row
        return LoggedOperation(
            found["names"][name],
            tuple(_argument(one, values) for one in arguments),
            tuple(values[one] for one in results),
            tuple(written),
            found["modules"][module],
            bool(backward),
            lines[line],
            tuple(map(tuple, sketches)),
            stacks[stack],
        )

    return OperationLog(
        [operation(row) for row in found["operations"]],
        {Holding(kind, name): values[number] for kind, name, number in found["given"]},
        {Holding(kind, name): values[number] for kind, name, number in found["left"]},
        [_setting(row, lines, stacks) for row in found["settings"]],
        [_setting(row, lines, stacks) for row in found["restores"]],
        [
            UserCall(sites[site], lines[line], tuple(operations), tuple(settings))
            for site, line, operations, settings in found["entries"]
        ],
        found["cut"],
        found["pieces"],
    )


def path_of(folder: Path, rank: int) -> Path:
    """Return the path of a rank's log of tensor operations."""
    return folder / log_of(rank)


def _settings(found: list[Setting], lines: _Interned, stacks: _Interned) -> list[Any]:
    return [[*one[:4], lines.number(one.line), stacks.number(one.sites)] for one in found]


def _setting(row: Any, lines: list[CodeLine | None], stacks: list[tuple[Site, ...]]) -> Setting:
    before, what, owner, value, line, stack = row
    return Setting(before, what, owner, value, lines[line], stacks[stack])


def _argument(given: Any, values: list[Value]) -> LoggedArgument:
    if isinstance(given, int):
        return values[given]
    if isinstance(given[0], str):
        return Constant(*given)
    return tuple(values[one] for one in given)


class _Interned:
    """Numbers distinct objects in the order of first use, to store each only once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def all(self) -> list[Any]:
        return [*self._numbers]
