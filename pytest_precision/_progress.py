"""Show how far long work has come: a line every 10 seconds, or a bar of `rich` on a terminal.

What works calls `advance` at each of its steps, and knows of nobody who looks. A command opens
`shown` around the work; elsewhere, as on the ranks of a test, nothing is shown. No thread is
started: a script that is recorded runs in this process, and would find it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from time import monotonic  # as it is before a script puts another clock into `time`
from typing import Any, TextIO

LINE_SECONDS = 10.0
"""Time between two lines, and before the first one."""

BAR_SECONDS = 0.2
"""Time between two pictures of a bar."""

_UNITS = ("B", "kB", "MB", "GB", "TB")

_open: list[WatchedWork] = []


class WatchedWork:
    """Prints how far one piece of work has come.

    Args:
        label: what works, such as the name of a script.
        unit: what its steps are called.
        write: prints a line.
    """

    interval = LINE_SECONDS

    def __init__(self, label: str, unit: str, write: Callable[[str], object]) -> None:
        self._label = label
        self._unit = unit
        self._write = write
        self._began = self._shown = monotonic()
        self._first: tuple[int, float] | None = None  # after it, all steps take as long

    def advance(self, done: int, expected: int | None, size: int) -> None:
        """Show how many steps are done, unless that was shown a moment ago.

        Args:
            done: steps that are over.
            expected: all steps; None if nobody knows.
            size: bytes that were recorded or compared in them.
        """
        time = monotonic()
        if self._first is None:
            self._first = done, time
        if time - self._shown >= self.interval and done != expected:
            self._shown = time
            with suppress(OSError, ValueError):  # nobody reads: that is no error of the work
                self._show(done, expected, size)

    def wait(self, awaited: str) -> None:
        """Show what is waited for, and since when; the caller knows that it is time to."""
        self._shown = monotonic()
        with suppress(OSError, ValueError):
            self._write(f"{self._label}: {awaited}, {in_seconds(self._shown - self._began)}")

    def _show(self, done: int, expected: int | None, size: int) -> None:
        of_all = "" if expected is None else f" of {expected}"
        sizes = [in_bytes(size)] if size else []
        words = [f"{done}{of_all} {self._unit}s", *sizes, self._times(done, expected)]
        self._write(f"{self._label}: {', '.join(words)}")

    def _times(self, done: int, expected: int | None) -> str:
        passed = in_seconds(monotonic() - self._began)
        before, since = self._first or (done, 0.0)
        if expected is None or done == before:
            return passed
        to_go = (monotonic() - since) / (done - before) * (expected - done)
        return f"{passed}, about {in_seconds(to_go)} to go"


class _Bar(WatchedWork):
    """Draws a bar of `rich`, which is gone when the work is done.

    Args:
        label: as of any progress.
        unit: as of any progress.
        picture: what draws it, `rich.progress.Progress`.
    """

    interval = BAR_SECONDS

    def __init__(self, label: str, unit: str, picture: Any) -> None:
        super().__init__(label, unit, picture.console.print)
        self._picture = picture
        self._task = picture.add_task(label, total=None)

    def _show(self, done: int, expected: int | None, size: int) -> None:
        words = f"{self._label}, {in_bytes(size)}, {self._times(done, expected)}"
        self._picture.update(self._task, completed=done, total=expected, description=words)
        self._picture.refresh()


@contextmanager
def shown(
    label: str,
    *,
    unit: str = "step",
    quiet: bool = False,
    bar: bool = False,
    write: Callable[[str], object] | None = None,
) -> Iterator[None]:
    """Show how far the work in the block has come.

    Args:
        label: what works.
        unit: what its steps are called.
        quiet: whether nothing is shown.
        bar: whether a bar may be drawn; nothing else may write to the terminal meanwhile.
        write: prints a line; to standard error unless given.
    """
    with ExitStack() as stack:
        if not quiet:
            picture = _picture() if bar else None
            progress = (
                WatchedWork(label, unit, write or _on(sys.stderr))
                if picture is None
                else _Bar(label, unit, stack.enter_context(picture))
            )
            _open.append(progress)
            stack.callback(_open.remove, progress)
        yield


def advance(done: int, expected: int | None, size: int) -> None:
    """Report progress to the progress display of this thread, if any; see `WatchedWork.advance`."""
    for progress in _open[-1:]:
        progress.advance(done, expected, size)


def wait(awaited: str) -> None:
    """Report to the progress display, if any, what the work waits for; see `WatchedWork.wait`."""
    for progress in _open[-1:]:
        progress.wait(awaited)


def _on(stream: TextIO) -> Callable[[str], object]:
    """Return a function that prints a line to a stream, which a script may replace later."""
    return lambda line: print(f"pytest_precision: {line}", file=stream, flush=True)


def in_bytes(size: float) -> str:
    """Return a number of bytes in words of three digits, such as `1.2 MB`."""
    for unit in _UNITS:
        if size < 999.5 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def in_seconds(seconds: float) -> str:
    """Return a time in words, such as `40 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def _picture() -> Any:
    """Return a function that draws a progress bar; None without `rich` or a terminal."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        return None
    from rich.console import Console
    from rich.progress import Progress as Picture

    # The standard streams stay what they are, and no thread draws.
    return Picture(
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
