"""Pages of made-up cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.report.json_file import JsonFile
from pytest_precision.report.page.render import write_page
from pytest_precision.report.provenance import environment

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write report.json and report.html of some checks; return the page."""

    def make(*entries: dict[str, Any], finished: bool = True, **more: Any) -> Path:
        file = JsonFile(tmp_path, environment(device="cpu", flags={"timeout": 7}) | more)
        file.plan(len(entries))
        for number, found in enumerate(entries):
            file.put(number, [found])
        file.close(finished=finished)
        return write_page(tmp_path)

    return make
