"""Nothing that matters is silent: a sample of `ci/bench/seen.py`, which ci/nightly runs whole."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_precision.recorders.scripts.model_copies import Copies

BENCH = Path(__file__).parents[3] / "ci" / "bench"
SAMPLE = ["--only", "AveragedModel", "StepLR", "--every", "4"]

Bench = Callable[..., tuple[int, str]]


@pytest.fixture
def bench(
    one_rank: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    """Run the bench in this process; return its status and what it printed."""
    monkeypatch.syspath_prepend(BENCH)
    main: Callable[[], int] = importlib.import_module("seen").main

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["seen.py", *arguments])
        with warnings.catch_warnings():
            status = main()
        return status, capsys.readouterr().out

    return run


def rows(printed: str) -> list[tuple[str, ...]]:
    """Return name and numbers of each row of a table."""
    return re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", printed, re.M)


def test_every_leaf_that_matters_is_red_or_named(bench: Bench) -> None:
    """Whatever is changed in what a loop can reach, and whatever one side never advances."""
    status, printed = bench(*SAMPLE)
    found = rows(printed)
    assert [row[0] for row in found] == SAMPLE[1:3] * 2, printed
    assert all(int(row[2]) > 5 and int(row[3]) > 5 for row in found), printed
    assert [row[5] for row in found] == ["0"] * len(found), printed
    assert status == 0


def test_what_a_blind_recorder_does_not_see_is_silent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no silent leaf means that all are seen: averages are hidden here, and found."""
    monkeypatch.setattr(Copies, "observe", lambda self: iter(()))
    status, printed = bench("--only", "AveragedModel", "--every", "7", "--verbose")
    change, absence = rows(printed)
    assert int(change[5]) > 0 < int(absence[5]), printed
    silent = re.findall(r"^  silent: (.+)$", printed, re.M)
    assert all("average" in what for what in silent), silent
    assert status == 1
