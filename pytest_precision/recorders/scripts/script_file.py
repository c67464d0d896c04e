"""Run a training script as `python train.py` does, record it, and show its errors.

The frames that run the script, and those by which this package watches it, are not the script's.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

import torch
import torch.distributed as dist

from pytest_precision.errors import InputMessage, expected_but_got
from pytest_precision.ranks.code.python_path import path_of_file
from pytest_precision.recorders.run_environment import SEED
from pytest_precision.recorders.scripts.loop_recording import LoopRecording
from pytest_precision.recorders.scripts.recorded_part import NothingRecordedError
from pytest_precision.recorders.scripts.steps import ON_DEMAND
from pytest_precision.recorders.source_files import LOGGING, PACKAGE_ROOT, PASSING_ON, TORCH
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.remote_folder import OutFolder

PASS_ON = (*PASSING_ON, *LOGGING)
"""Files that call the function of torch that a script calls, in its place."""


def record_file(
    file: Path,
    arguments: Sequence[str],
    out: OutFolder,
    steps: int,
    values: Collection[int],
    *,
    local_grads: bool = False,
    lines: int = 0,
    only: Sequence[str] = (),
    every: int = 1,
    digest_name: str = LIN8,
) -> int:
    """Run a script file as `python file` does, and write this rank's recording of its steps.

    The script is ended where it begins the step after the last one. torch is seeded before it, as
    in a cell; all else is as the script and its environment have it.

    Args:
        file: the script.
        arguments: of the script.
        out: with an existing folder without a recording, the same for all ranks.
        steps: number of train steps to record, if the script makes as many.
        values: steps whose values are written, 0 for the start; digests are written of the others.
        local_grads: whether gradients are looked at as each backward leaves them.
        lines: ranks over which the other side spreads its tensors, if all tensor operations are
            logged, by which a comparison names a line; 0 for no log.
        only: patterns of the names of the tensors that are looked at; none for all.
        every: they are looked at in the first step, in each such step after it, and in the last.
        digest_name: name of the digests.

    Returns:
        the number of train steps that were recorded.

    Raises:
        NothingRecordedError: the script made no train step in this process, or no tensor has such a
            name.
        NotWrittenError: a part of the recording cannot be written.
        Exception: whatever the script raises.
    """
    manifest = Manifest.now(file, arguments, steps, values, only=only, every=every)
    torch.manual_seed(SEED)
    recording = LoopRecording(out, manifest, digest_name, lines=lines)
    with recording.trace:
        recording.loop.tell(see={ON_DEMAND} if local_grads else ())
        follow_file(file, arguments, recording.followed())
        if not recording.loop.schedule.done:
            raise NothingRecordedError(
                expected_but_got(
                    f"{file} to train",
                    "no step of a torch.optim.Optimizer in this process",
                    "name the script whose own process trains; start one that spawns its processes "
                    "by torchrun; let a loop that updates by hand do so in the `step` of an "
                    "optimizer",
                )
            )
        done = recording.finish()
    if dist.is_initialized():
        dist.destroy_process_group()  # the script was ended before it could
    return done


@contextmanager
def ended_well() -> Iterator[None]:
    """Suppress `sys.exit()` and `sys.exit(0)` inside the context; let other exits through."""
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def follow_file(
    file: Path, arguments: Sequence[str], following: AbstractContextManager[object]
) -> None:
    """Run `python file arguments` in this process, followed from its first line to its last step.

    It is the one way in which a script file runs, for the command line and in a cell.

    Args:
        file: the script.
        arguments: of the script.
        following: is open while it runs, and ends it after the last step; see `followed`.
    """
    with following, ended_well():
        run_file(file, arguments)


def run_file(file: Path, arguments: Sequence[str]) -> None:
    """Run `python file arguments` in-process; restore what that sets, and the working directory.

    As there, `__main__` is a module without a spec or a package, its file is absolute, and the
    first entry of `sys.path` is the folder of the file, wherever a link to it lies.
    """
    main = _main_of(file)
    before = sys.argv, sys.path[:], os.getcwd(), sys.modules.get("__main__", main)
    sys.argv = [str(file), *arguments]
    sys.path[:] = path_of_file(file, sys.path)
    sys.modules["__main__"] = main
    try:
        if zipfile.is_zipfile(file) or file.suffix == ".pyc":  # Python finds the code in these
            runpy.run_path(str(file), run_name="__main__")
            return
        with io.open_code(str(main.__file__)) as source:
            code = compile(source.read(), str(main.__file__), "exec", dont_inherit=True)
        exec(code, vars(main))
    finally:
        sys.argv, sys.path[:], directory, sys.modules["__main__"] = before
        os.chdir(directory)


def _main_of(file: Path) -> ModuleType:
    """Return an empty module `__main__` as Python makes it for a script file."""
    main = ModuleType("__main__")
    main.__file__ = os.path.abspath(file)
    main.__loader__ = SourceFileLoader("__main__", main.__file__)
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    main.__cached__ = None  # type: ignore[attr-defined]
    main.__annotations__ = {}
    return main


def report_script_alone(file: str) -> None:
    """Replace `sys.excepthook` by one that shows only the script's part of a traceback.

    Args:
        file: the script; Python names it by its absolute path.
    """
    report = sys.excepthook

    def report_trimmed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        for link in chain_of(error):
            link.__traceback__ = frames_of_script(os.path.abspath(file), link, link.__traceback__)
        report(kind, error, error.__traceback__)

    sys.excepthook = report_trimmed


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes, and those that it was raised while handling."""
    chain = [error]
    for link in chain:  # grows on the way
        chain += [
            other
            for other in (link.__cause__, link.__context__)
            if other is not None and all(other is not earlier_error for earlier_error in chain)
        ]
    return chain


def frames_of_script(
    file: str, error: BaseException, trace: TracebackType | None
) -> TracebackType | None:
    """Return a traceback from the script's first frame on; the whole if no frame is the script's.

    Frames of this package that only pass a call on to torch are left out. Of an error that this
    package raises about what a script does, the traceback ends at the last level that is neither of
    this package nor of torch.
    """
    entries = [*_entries(trace)]
    begins = [n for n, level in enumerate(entries) if _file(level) == file]
    if not begins:
        return None if isinstance(error, SyntaxError) and error.filename == file else trace
    entries = entries[begins[0] :]
    if any(isinstance(message, InputMessage) for message in error.args):
        while len(entries) > 1 and _file(entries[-1]).startswith((PACKAGE_ROOT, TORCH)):
            entries.pop()
    ours = [level for level in entries if _file(level).startswith(PACKAGE_ROOT)]
    passed_on = all(_file(level).startswith(PASS_ON) for level in ours) and entries[-1] not in ours
    return _joined_traceback([level for level in entries if not passed_on or level not in ours])


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _joined_traceback(entries: Sequence[TracebackType]) -> TracebackType | None:
    joined_traceback: TracebackType | None = None
    for level in reversed(entries):
        joined_traceback = TracebackType(
            joined_traceback, level.tb_frame, level.tb_lasti, level.tb_lineno
        )
    return joined_traceback
