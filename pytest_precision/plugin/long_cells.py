"""Say on the terminal how far a cell of minutes has come."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from pytest_precision._progress import shown
from pytest_precision._visible import visible


def progress_of(item: pytest.Item) -> AbstractContextManager[None]:
    """Return a context in which lines on a test's work reach the terminal, past pytest's capture.

    With `--quiet` nothing is shown, nor in a worker of xdist, which has no terminal.
    """
    plugins = item.config.pluginmanager
    reporter: pytest.TerminalReporter | None = plugins.getplugin("terminalreporter")
    capture = plugins.getplugin("capturemanager")

    def write(line: str) -> None:
        assert reporter is not None
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)

    quiet = reporter is None or capture is None or item.config.get_verbosity() < 0
    return shown(visible(item.name), unit="operation", quiet=quiet, write=write)
