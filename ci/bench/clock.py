"""A plugin of pytest that writes down when each test ended, and what it measured by itself.

`pytest -p clock`, with the name of the file in CLOCK_FILE. Under a launcher the first rank writes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

ENDS: list[float] = []
SECONDS: list[float] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take what a test measured; one that failed has no place in the figures."""
    if report.failed:
        raise RuntimeError(report.longreprtext)
    if report.when == "call":
        SECONDS.extend(value for name, value in report.user_properties if name == "seconds")


def pytest_runtest_logfinish() -> None:
    """Take the time."""
    ENDS.append(time.monotonic())


def pytest_sessionfinish() -> None:
    """Write all down."""
    if os.environ.get("RANK", "0") == "0":
        text = json.dumps({"ends": ENDS, "seconds": SECONDS})
        Path(os.environ["CLOCK_FILE"]).write_text(text)
