"""Log which of the user's functions a library calls, and which of their lines were skipped.

An override, a hook or a replaced function may be wrong for what it does not do, which no operation
shows.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from pytest_precision._interrupts import AroundImport
from pytest_precision.probes.lines.log.frames import Frames
from pytest_precision.probes.lines.operations import CodeLine, OperationLog, UserCall

MOST_ENTRIES = 10_000
"""Calls of a rank that are noted."""

MOST_LINES = 10_000
"""Lines that one call may run before they are no longer followed."""

FOLLOWED_IN_VAIN = "torch._dynamo"
"""Module of 300 that torch imports in the middle of a script, where that makes its first optimizer.
None of them calls a function of the user's, and followed they take three times as long."""

NEVER_ONE_CALL = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class UserCalls:
    """Logs each call of a user's function by a library or by the recorder.

    It needs the thread's trace function, and leaves that of a debugger or a coverage tool alone.

    Args:
        frames: tells whose code is whose.
        log: takes what is called.
        active: whether calls are noted now.
    """

    def __init__(self, frames: Frames, log: OperationLog, active: Callable[[], bool]) -> None:
        self._frames = frames
        self._log = log
        self._active = active

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Log calls of the user's functions inside the context, by Python's trace function."""
        if sys.gettrace() is not None:
            yield
            return
        with AroundImport(FOLLOWED_IN_VAIN, self.paused).watching():
            sys.settrace(self._called)
            try:
                yield
            finally:
                sys.settrace(None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop logging calls inside the context, where the logger itself calls many functions."""
        ours = sys.gettrace() == self._called
        if ours:
            sys.settrace(None)
        try:
            yield
        finally:
            if ours:
                sys.settrace(self._called)

    def _called(self, frame: FrameType, _event: str, _value: Any) -> Any:
        """Log the call if a library made it of a user's function; a Python trace function."""
        if not self._active() or not self._frames.is_users(frame.f_code) or _has_no_end(frame):
            return None
        site = self._frames.site_of_call(frame)
        if site is None or len(self._log.entries) >= MOST_ENTRIES:
            return None
        log = self._log
        run = set[int]()
        place = len(log.entries)
        before = (len(log.operations), len(log.settings))
        log.entries.append(
            UserCall(site, _line(frame.f_code, run), (before[0],) * 2, (before[1],) * 2)
        )

        def step(frame: FrameType, event: str, _value: Any) -> Any:
            if event == "line":
                run.add(frame.f_lineno)
                frame.f_trace_lines = len(run) < MOST_LINES
            elif event == "return" and place < len(log.entries):
                after = (before[0], len(log.operations)), (before[1], len(log.settings))
                log.entries[place] = UserCall(site, _line(frame.f_code, run), *after)
            return step

        return step


def _has_no_end(frame: FrameType) -> bool:
    """Return whether a frame is of a generator, coroutine or comprehension, not of a plain call."""
    code = frame.f_code
    nested = code.co_name.startswith("<") and code.co_name != "<lambda>"
    return nested or bool(code.co_flags & NEVER_ONE_CALL)


def _line(code: CodeType, run: set[int]) -> CodeLine:
    """Return the last executed line before the first unexecuted one; else `code`'s first line."""
    left_out = {line for *_, line in code.co_lines() if line} - run - {code.co_firstlineno}
    first = min(left_out, default=0)
    deciding = max((line for line in run if line < first), default=code.co_firstlineno)
    line = deciding if run and left_out else code.co_firstlineno
    return CodeLine(code.co_filename, line, code.co_name, "", True)
