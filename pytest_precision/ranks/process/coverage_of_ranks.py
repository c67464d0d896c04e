"""Coverage of ranks: if coverage.py measures the test session, each rank measures its code too."""

from __future__ import annotations

import sys
from collections.abc import Callable

FOR_PROCESSES = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
"""Variables by which coverage.py measures each process that is started: the fork server, which runs
nothing of the user's, would write its file when all others have been put together."""

QUIET = ("no-data-collected", "module-not-imported", "module-not-measured")
"""What is no news of a rank: it runs a part of what the session measures."""


def measured_here() -> str:
    """Return the configuration of the coverage.py that runs in this process; empty if none runs."""
    running = None
    if "coverage" in sys.modules:
        from coverage import Coverage

        running = Coverage.current()
    return "" if running is None else str(running.config.serialize())


def measure(configuration: str) -> Callable[[], None]:
    """Start coverage.py in this process; return a function that saves its data.

    The plugin that measures the session puts all files together after its last test, when ranks
    still live. So a rank writes after each job, and not when it ends.

    Args:
        configuration: of the coverage.py of the session; empty where nothing is measured.
    """
    if not configuration:
        return lambda: None
    from coverage import Coverage

    # As coverage.py hands a configuration to processes that it starts itself.
    measuring = Coverage(config_file=f":data:{configuration}", data_suffix=True)
    measuring.set_option("run:disable_warnings", list(QUIET))
    measuring.set_option("run:patch", [])  # those are for processes that end by themselves
    measuring.start()
    return measuring.save
