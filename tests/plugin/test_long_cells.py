"""A cell of minutes says on the terminal how far it has come."""

from __future__ import annotations

import time

import pytest

from pytest_precision import _progress
from pytest_precision._progress import WatchedWork, shown
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

SUITE = """
import pytest
from pytest_precision._progress import advance

@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train4"])
def test_cell(cell):
    print("of the test alone")
    advance(1, 4, 0)

def test_plain():
    advance(1, 4, 0)
"""


@pytest.mark.parametrize("options", [(), ("--quiet",)], ids=" ".join)
def test_a_line_passes_the_capture(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """What the test prints stays captured, and a plain test is not this plugin's."""
    monkeypatch.setattr(WatchedWork, "interval", 0.0)
    pytester.makepyfile(test_it=SUITE)
    ran = pytester.runpytest_inprocess("--precision-matrix", "-p", "no:cacheprovider", *options)
    ran.assert_outcomes(passed=2)
    lines = [line for line in ran.outlines if line.startswith("test_cell[fp32-train4]: ")]
    assert lines == ([] if options else ["test_cell[fp32-train4]: 1 of 4 operations, 0 s"])
    assert "of the test alone" not in ran.stdout.str()


def test_ranks_that_are_waited_for_are_named(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps are known in their own processes alone."""
    monkeypatch.setattr(_progress, "LINE_SECONDS", 0.1)
    lines: list[str] = []
    with shown("test_it[fp32]", write=lines.append):
        resources.ranks(Settings(timeout=60, device="cpu")).run(2, time.sleep, 0.5)
    assert any(line.startswith("test_it[fp32]: waiting for ranks 0, 1, ") for line in lines)
