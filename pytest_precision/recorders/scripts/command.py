"""Run a script file as one side of a comparison, as torchrun starts it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.layouts.declarations import with_environment
from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.matrix.variables import plain_variables
from pytest_precision.matrix.ways_in import COMMAND
from pytest_precision.ranks.code.module_files import imported_files
from pytest_precision.ranks.code.relocation import relocated
from pytest_precision.recorders.scripts.script import script

if TYPE_CHECKING:
    from pytest_precision.recorders.scripts.script_recorder import Record

__tracebackhide__ = is_bad_input


def command(
    file: str | Path, *arguments: object, env: Mapping[str, str] | None = None
) -> Callable[..., Any]:
    """Return a `candidate=` or `reference=` value that runs `python file arguments` on all ranks.

    parity.check(
            candidate=command("train.py", "--optim", "adamw_torch_fused", "--seed", "{seed}"),
            reference=command("train.py", "--optim", "adamw_torch", "--seed", "{seed}"),
        )

    It runs as `python -m pytest_precision record` runs it under torchrun: in new processes, which
    have imported nothing of yours, with `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and the
    others that torchrun sets, with the `sys.path` of `python file`, and without a process group:
    the file makes its own. Its first train steps are recorded, as many as the sequence of the cell
    has, and then it is ended.

    Args:
        file: the script, relative to the current directory.
        arguments: of the script; `{precision}`, or any other axis in braces, is its value in the
            cell.
        env: environment variables in addition to the caller's, with which its ranks start.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError: `env` is not a mapping from text to text.
        ValueError: no process can have such a variable.
    """
    path = Path(os.path.abspath(file))  # what a link leads to, only Python asks
    if not path.is_file():
        raise FileNotFoundError(
            expected_but_got(
                "an existing file",
                named("file", str(file)),
                f"relative paths begin in {Path.cwd()}",
            )
        )
    side = functools.partial(run_command, file=str(path), arguments=tuple(map(str, arguments)))
    variables = plain_variables({} if env is None else env, "env")
    return with_environment(**dict(variables))(side) if variables else side


@script
def run_command(cell: Cell, record: Record, file: str, arguments: tuple[str, ...]) -> None:
    """Run a script file in this process, which torchrun could have started for it."""
    # Only ranks need torch for this; the controller asks for the command without it.
    from pytest_precision.recorders.scripts.script_file import follow_file

    words = [_filled(argument, cell) for argument in arguments]
    path = relocated(file)
    imported_files().add(path)
    follow_file(Path(path), words, record())


run_command.way_in = COMMAND  # type: ignore[attr-defined]


def _filled(argument: str, cell: Cell) -> str:
    """Return a command-line argument with `{axis}` replaced by the test cell's value of the axis.

    Raises:
        ValueError: there is no such axis.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in axes_of(cell):
            raise ValueError(
                expected_but_got(
                    f"an axis in braces, one of {', '.join(axes_of(cell))},",
                    named("argument", argument),
                    "leave the braces out, or add the axis to the marker",
                )
            )
        return str(getattr(cell, match[1]))

    return re.sub(r"\{([a-z_]\w*)\}", value, argument)
