"""Write docs/sample: the report of fixtures/sample, its page, and a picture of the top of it.

    python ci/bench/sample.py

The picture needs Chromium. `python -m pytest_precision report html docs/sample` writes the page of
the cells that are there anew, which a change of the page alone needs.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from pytest_precision.report.json_file import encode
from pytest_precision.report.page.render import write_page

ROOT = Path(__file__).parents[2]

SAMPLE = ROOT / "docs" / "sample"

SIZE = {"width": 1180, "height": 1000}
"""Pixels of the picture."""


def record() -> None:
    """Run the cells; some of them fail, as they should.

    Raises:
        RuntimeError: they did not.
    """
    words = [
        "--precision-matrix",
        f"--precision-report={SAMPLE}",
        "--rootdir=.",
        "-p",
        "no:cacheprovider",
    ]
    process = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT / "fixtures/sample")
    if process.returncode != 1:
        raise RuntimeError(f"expected cells that fail but got exit status {process.returncode}")


def without_machine() -> None:
    """Leave out what names the machine that made the sample, and the commit, which is not kept."""
    file = SAMPLE / "report.json"
    report = json.loads(file.read_text())
    report["environment"]["platform"] = f"{platform.system()} {platform.machine()}"
    (run,) = report["environment"]["runs"]
    run |= dict.fromkeys(("commit", "branch", "host"), "example") | {"dirty": False}
    file.write_bytes(encode(report) + b"\n")
    write_page(SAMPLE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's Chromium.

    Raises:
        RuntimeError: there is none.
    """
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise RuntimeError("expected chromium on PATH but it is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def photograph() -> None:
    """Write the picture."""
    with chromium() as browser:
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.goto((SAMPLE / "report.html").as_uri())
        page.screenshot(path=SAMPLE / "report.png")


if __name__ == "__main__":
    record()
    without_machine()
    photograph()
