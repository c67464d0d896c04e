"""The smallest green cell, and a plugin that notes which functions of the package run in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import pytest

import pytest_precision
from pytest_precision import Cell, Engine, Parity, Workload, layouts, workloads

PACKAGE = str(Path(pytest_precision.__file__).parent)


def callers(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames above a frame, up to the test."""
    above = frame.f_back
    while above is not None and above.f_code is not test_cell.__code__:
        yield above
        above = above.f_back


def inside(frame: FrameType) -> bool:
    """Tell whether a frame is one of the package."""
    return frame.f_code.co_filename.startswith(PACKAGE)


def layout(workload: Workload, cell: Cell) -> Engine:
    """Build a plain engine; its frame is where the way from the test ends."""
    return layouts.adamw(workload, cell)


@pytest.mark.precision_matrix(precision=["fp32"], world_size=[1], sequence=["train2"])
def test_cell(parity: Parity) -> None:
    """Check a layout against the one that it calls."""
    parity.check(layout, layouts.adamw, workload=workloads.mlp)


class Calls:
    """The functions of the package that have run, and what called what.

    Attributes:
        functions: file and first line of each.
        between: pairs of rooms of which the first called the second.
        frames: frames of the package between the test and its layout.
    """

    def __init__(self) -> None:
        self.functions: set[tuple[str, int]] = set()
        self.between: set[tuple[str, str]] = set()
        self.frames = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; this is what `sys.setprofile` takes."""
        code = frame.f_code
        if event == "call" and code is layout.__code__:
            self.frames = sum(map(inside, callers(frame)))
        if event != "call" or not inside(frame) or code.co_name == "<module>":
            return
        self.functions.add((code.co_filename, code.co_firstlineno))
        above = next(filter(inside, callers(frame)), None)
        if above is not None:
            self.between.add((room(above.f_code.co_filename), room(code.co_filename)))


def room(file: str) -> str:
    """Return the folder or module right under the package that a file is in."""
    return file[len(PACKAGE) + 1 :].split("/")[0].removesuffix(".py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Write the figures of the test, if it passes."""
    calls = Calls()
    sys.setprofile(calls)
    try:
        result = yield
    finally:
        sys.setprofile(None)
    Path(os.environ["HOUSE_FIGURES"]).write_text(json.dumps(figures(calls)))
    return result


def figures(calls: Calls) -> dict[str, int]:
    """Return the figures of a cell by name."""
    files = {file for file, _ in calls.functions}
    return {
        "smallest green cell: functions executed": len(calls.functions),
        "smallest green cell: modules executed": len(files),
        "smallest green cell: lines of these modules": sum(
            len(Path(file).read_text().splitlines()) for file in files
        ),
        "smallest green cell: frames between test and layout": calls.frames,
        "smallest green cell: pairs of rooms that call": sum(a != b for a, b in calls.between),
    }
