"""Script traceback: show a recorded script's errors without this package's own frames.

The frames that run the script, and those by which this package watches it, are not the script's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from pytest_precision.errors import InputMessage
from pytest_precision.recorders.lines.frames import PACKAGE_ROOT, TORCH


def report_script_alone(file: str) -> None:
    """Replace `sys.excepthook` by one that shows only the script's part of a traceback.

    Args:
        file: the script, as it was named on the command line.
    """
    report = sys.excepthook

    def report_trimmed(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        kept = frames_of_script(str(Path(file)), error, trace)
        report(kind, error.with_traceback(kept), kept)

    sys.excepthook = report_trimmed


def frames_of_script(
    file: str, error: BaseException, trace: TracebackType | None
) -> TracebackType | None:
    """Return the part of a traceback from a file's first frame on; all of it without one.

    Of an error that this package raises about what a script does, it ends at the last frame that is
    neither of this package nor of torch.
    """
    entries = [*_entries(trace)]
    begins = [n for n, one in enumerate(entries) if one.tb_frame.f_code.co_filename == file]
    if not begins:
        return None if isinstance(error, SyntaxError) and error.filename == file else trace
    entries = entries[begins[0] :]
    if any(isinstance(one, InputMessage) for one in error.args):
        while _is_library(entries[-1]):
            entries.pop()
    return _joined(entries)


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_library(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith((PACKAGE_ROOT, TORCH))


def _joined(entries: Sequence[TracebackType]) -> TracebackType | None:
    joined: TracebackType | None = None
    for one in reversed(entries):
        joined = TracebackType(joined, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return joined
