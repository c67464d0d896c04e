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
    StepEnd,
    UserCall,
    Value,
)
from pytest_precision.trace.sealed import log_of

FORM = 5
"""Version of the file's form; another version of the package may have written another one."""

RECORD_AGAIN = "record both sides once more, with --lines"


def write_operations(log: OperationLog, folder: Path, rank: int) -> None:
    """Write a rank's log of tensor operations as JSON beside its trace."""
    values, lines, names, modules, sites, stacks = (_Interned() for _ in range(6))

    def argument(logged: LoggedArgument) -> Any:
        if isinstance(logged, Value):
            return values.number(logged)
        return logged if isinstance(logged, Constant) else [*map(values.number, logged)]

    rows = [
        [
            names.number(operation.name),
            [argument(logged) for logged in operation.arguments],
            [values.number(result) for result in operation.results],
            operation.written,
            modules.number(operation.module),
            int(operation.backward),
            lines.number(operation.line),
            operation.sketches,
            stacks.number(operation.sites),
        ]
        for operation in log.operations
    ]
    content = {
        "form": FORM,
        "operations": rows,
        "given": [(*key, values.number(value)) for key, value in log.initial_values.items()],
        "left": [(*key, values.number(value)) for key, value in log.left.items()],
        **{name: _settings(getattr(log, name), lines, stacks) for name in ("settings", "restores")},
        "entries": [(sites.number(s), lines.number(line), *rest) for s, line, *rest in log.entries],
        "stacks": [[sites.number(site) for site in stack] for stack in stacks.all],
        "sites": sites.all,
        "cut": log.cut,
        "pieces": log.pieces,
        "steps": log.steps,
        "rows": log.rows,
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
    content = files.data(path_of(folder, rank))
    if content.get("form") != FORM:
        got = f"form {content.get('form', 'none')} of {folder}"
        raise ValueError(expected_but_got(f"operations in form {FORM}", got, RECORD_AGAIN))
    values = [Value(*row[:3], *map(tuple, row[3:])) for row in content["values"]]
    lines = [None if row is None else CodeLine(*row) for row in content["lines"]]
    sites = [Site(*row) for row in content["sites"]]
    stacks = [tuple(sites[number] for number in stack) for stack in content["stacks"]]

    def operation(row: list[Any]) -> LoggedOperation:
        name, arguments, results, written, module, backward, line, sketches, stack = row
        return LoggedOperation(
            content["names"][name],
            tuple(_argument(argument, values) for argument in arguments),
            tuple(values[number] for number in results),
            tuple(written),
            content["modules"][module],
            bool(backward),
            lines[line],
            tuple(map(tuple, sketches)),
            stacks[stack],
        )

    return OperationLog(
        [operation(row) for row in content["operations"]],
        {Holding(kind, name): values[number] for kind, name, number in content["given"]},
        {Holding(kind, name): values[number] for kind, name, number in content["left"]},
        [_setting(row, lines, stacks) for row in content["settings"]],
        [_setting(row, lines, stacks) for row in content["restores"]],
        [
            UserCall(sites[site], lines[line], tuple(operations), tuple(settings))
            for site, line, operations, settings in content["entries"]
        ],
        content["cut"],
        content["pieces"],
        [StepEnd(*row) for row in content["steps"]],
        content.get("rows", False),
    )


def path_of(folder: Path, rank: int) -> Path:
    """Return the path of a rank's log of tensor operations."""
    return folder / log_of(rank)


def _settings(settings: list[Setting], lines: _Interned, stacks: _Interned) -> list[Any]:
    return [
        [*setting[:4], lines.number(setting.line), stacks.number(setting.sites)]
        for setting in settings
    ]


def _setting(row: Any, lines: list[CodeLine | None], stacks: list[tuple[Site, ...]]) -> Setting:
    before, option, owner, value, line, stack = row
    return Setting(before, option, owner, value, lines[line], stacks[stack])


def _argument(stored: Any, values: list[Value]) -> LoggedArgument:
    if isinstance(stored, int):
        return values[stored]
    if isinstance(stored[0], str):
        return Constant(*stored)
    return tuple(values[number] for number in stored)


class _Interned:
    """Numbers distinct objects in the order of first use, to store each only once."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def all(self) -> list[Any]:
        return [*self._numbers]
