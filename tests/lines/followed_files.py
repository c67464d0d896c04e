"""Script files as sides that run in a process with others: in this one, or on kept ranks.

A `command` has new processes for each of its runs. Which line is wrong does not depend on that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pytest_precision import Cell, script
from pytest_precision.recorders.scripts.script_file import follow_file
from pytest_precision.recorders.scripts.script_recorder import Record


@script
def run(cell: Cell, record: Record, file: str, arguments: tuple[str, ...]) -> None:
    """Run a script file in this process."""
    follow_file(Path(file), arguments, record())


def followed(file: Path, *arguments: object) -> Callable[..., Any]:
    """Return a side that runs `python file arguments` in this process."""
    return partial(run, file=str(file), arguments=tuple(map(str, arguments)))


@script
def named(cell: Cell, record: Record) -> None:
    """Run the script file that axes of the cell name: all such sides share their ranks."""
    run(cell, record, cell.file, tuple(cell.arguments.split()))


def naming(cell: Cell, file: Path, *arguments: object) -> Cell:
    """Return a cell in which `named` runs `python file arguments`; no argument has a space."""
    return Cell(
        sequence=cell.sequence,
        world_size=cell.world_size,
        extra=(("file", str(file)), ("arguments", " ".join(map(str, arguments)))),
    )
