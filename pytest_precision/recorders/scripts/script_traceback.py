"""Script traceback: show a recorded script's errors without this package's own frames.

The frames that run the script, and those by which this package watches it, are not the script's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from pytest_precision.errors import InputMessage
from pytest_precision.recorders.lines.frames import (
    LOGGING,
    PACKAGE_ROOT,
    TORCH,
    WRAPPERS_OF_TORCH,
)

PASS_ON = (WRAPPERS_OF_TORCH, *LOGGING)
"""Files that call the function of torch that a script calls, in its place."""


def report_script_alone(file: str) -> None:
    """Replace `sys.excepthook` by one that shows only the script's part of a traceback.

    Args:
        file: the script, as it was named on the command line.
    """
    report = sys.excepthook

    def report_trimmed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        for one in chain_of(error):
            one.__traceback__ = frames_of_script(str(Path(file)), one, one.__traceback__)
        report(kind, error, error.__traceback__)

    sys.excepthook = report_trimmed


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes, and those that it was raised while handling."""
    chain = [error]
    for one in chain:  # grows on the way
        chain += [
            other
            for other in (one.__cause__, one.__context__)
            if other is not None and all(other is not known for known in chain)
        ]
    return chain


def frames_of_script(
    file: str, error: BaseException, trace: TracebackType | None
) -> TracebackType | None:
    """Return a traceback from the script's first frame on; all of it if the script has no frame.

    Frames of this package that only pass a call on to torch are left out. Of an error that this
    package raises about what a script does, the traceback ends at the last frame that is neither of
    this package nor of torch.
    """
    entries = [*_entries(trace)]
    begins = [n for n, one in enumerate(entries) if _file(one) == file]
    if not begins:
        return None if isinstance(error, SyntaxError) and error.filename == file else trace
    entries = entries[begins[0] :]
    if any(isinstance(one, InputMessage) for one in error.args):
        while len(entries) > 1 and _file(entries[-1]).startswith((PACKAGE_ROOT, TORCH)):
            entries.pop()
    ours = [one for one in entries if _file(one).startswith(PACKAGE_ROOT)]
    passed_on = all(_file(one).startswith(PASS_ON) for one in ours) and entries[-1] not in ours
    return _joined([one for one in entries if not passed_on or one not in ours])


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _joined(entries: Sequence[TracebackType]) -> TracebackType | None:
    joined: TracebackType | None = None
    for one in reversed(entries):
        joined = TracebackType(joined, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return joined
