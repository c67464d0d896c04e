"""Long work says how far it has come, and short work, or nobody's, says nothing."""

from __future__ import annotations

import io
import sys
import time

import pytest

from pytest_precision import _progress
from pytest_precision._progress import WatchedWork, advance, in_bytes, in_seconds, shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is one that took ten seconds."""
    monkeypatch.setattr(WatchedWork, "interval", 0.0)
    monkeypatch.setattr(_progress._Bar, "interval", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_line_has_steps_bytes_and_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    """The first step takes what starting takes, and none is made from it."""
    with shown("train.py"):
        for done in (1, 2):
            advance(done, 10, 1200000 * done)
            time.sleep(0.01)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "pytest_precision: train.py: 1 of 10 steps, 1.2 MB, 0 s"
    assert second == "pytest_precision: train.py: 2 of 10 steps, 2.4 MB, 0 s, about 0 s to go"


@pytest.mark.usefixtures("at_once")
def test_the_last_step_and_what_nobody_watches_are_not_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is done has a verdict, and a rank of a test has no reader."""
    advance(1, 2, 0)
    with shown("a", quiet=True):
        advance(1, 2, 0)
    with shown("a"):
        advance(2, 2, 0)
    assert capsys.readouterr().err == ""


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten seconds pass before the first line."""
    with shown("a"):
        advance(1, 2, 0)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("at_once")
def test_a_stream_that_nobody_reads_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script goes on when its terminal is gone."""
    closed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", closed)
    with shown("a"):
        closed.close()
        advance(1, 2, 0)


@pytest.mark.usefixtures("at_once")
def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rich, which is gone afterwards, and leaves the standard streams alone."""
    pytest.importorskip("rich")
    monkeypatch.setattr(sys, "stderr", Terminal())
    streams = sys.stdout, sys.stderr
    with shown("a against b", bar=True):
        advance(3, 4, 2000)
        assert (sys.stdout, sys.stderr) == streams
        assert "a against b, 2 kB" in sys.stderr.getvalue()
    assert "pytest_precision:" not in sys.stderr.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_times_are_in_words(seconds: float, words: str) -> None:
    """Rounded once, so that none has 60 seconds."""
    assert in_seconds(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1.5e9, "1.5 GB"), (2e15, "2e+03 TB")],
)
def test_sizes_are_in_words(size: float, words: str) -> None:
    """With three digits, and the unit that fits."""
    assert in_bytes(size) == words
