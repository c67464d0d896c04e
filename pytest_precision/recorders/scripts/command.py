"""Run a script file as one side of a comparison, as torchrun starts it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.layouts.declarations import with_environment
from pytest_precision.matrix.cell import Cell, axes_of
from pytest_precision.matrix.variables import plain_variables
from pytest_precision.matrix.ways_in import COMMAND
from pytest_precision.ranks.code.module_files import imported_files
from pytest_precision.ranks.code.relocation import relocated
from pytest_precision.ranks.process.rendezvous import reserved_port
from pytest_precision.ranks.state.environment import patched
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

    The ranks are new, with `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` in
    their environment, and without a process group: the file makes its own. Its first train steps
    are recorded, as many as the sequence of the cell has, and then it is ended.

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
    path = Path(file).resolve()
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
    """Run a script file on this rank, outside the process group that the test's ranks have."""
    # Only ranks need torch for this; the controller asks for the command without it.
    from pytest_precision.recorders.scripts.script_file import ended_well, run_file

    words = [_filled(argument, cell) for argument in arguments]
    path = relocated(file)
    imported_files().add(path)
    with _without_group(), record(), ended_well():
        run_file(Path(path), words)


run_command.fresh_ranks = True  # type: ignore[attr-defined]
run_command.way_in = COMMAND  # type: ignore[attr-defined]
run_command.may_leave = ("*",)  # type: ignore[attr-defined]


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


@contextmanager
def _without_group() -> Iterator[None]:
    """Destroy this rank's process group inside the context, and make a new one after it."""
    import torch.distributed as dist

    from pytest_precision._torch.distributed import process_groups

    rank, world_size = dist.get_rank(), dist.get_world_size()
    backend = str(dist.get_backend_config())
    device = process_groups().default_pg.bound_device_id  # without one, nccl guesses the device
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    tcp_store = dist.TCPStore  # type: ignore[attr-defined]
    # It is open from now on: while the file runs, another process could take a port that is free.
    served = tcp_store(address, 0, is_master=True, wait_for_workers=False) if not rank else None
    with ExitStack() as reserved:
        ports = [0, 0]
        if served is not None:
            ports = [reserved.enter_context(reserved_port()), served.port]
        dist.broadcast_object_list(ports)
        dist.destroy_process_group()
        # Ranks of their own have the first four already, unlike a test process that is the only.
        place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": 1}
        variables = {name: os.environ.get(name, str(value)) for name, value in place.items()}
        ended = False
        try:
            with patched(variables | {"MASTER_ADDR": address, "MASTER_PORT": str(ports[0])}):
                yield
            ended = True
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            if ended or world_size == 1:  # the peers of a rank that failed would not come
                store = served or tcp_store(address, ports[1], is_master=False)
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=world_size, device_id=device
                )
