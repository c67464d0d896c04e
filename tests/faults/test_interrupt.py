"""Ctrl-C while ranks are at work."""

from __future__ import annotations

import os
import signal
import time

import pytest
from around import process
from slack import slack

from pytest_precision.ranks import RankPool

SUITE = """
    import pytest
    from around import busy

    @pytest.mark.world_size(2)
    def test_busy(ranks):
        ranks.run(busy, {folder!r})
"""


def interrupt_the_caller(pid):
    if os.environ["RANK"] == "0":
        time.sleep(0.2)
        os.kill(pid, signal.SIGINT)
    time.sleep(600)


def test_ctrl_c_passes_through(nothing_left):
    """The ranks that were at work are ended, and the next job gets new ones."""
    ranks = RankPool(timeout=30)
    before = ranks.run(2, process)
    with pytest.raises(KeyboardInterrupt):
        ranks.run(2, interrupt_the_caller, os.getpid())
    assert set(ranks.run(2, process)).isdisjoint(before)
    ranks.close()


def test_ctrl_c_in_a_terminal_ends_the_session(session_of):
    """It goes to all processes of the terminal; pytest ends with its own status and summary."""
    with session_of(SUITE) as session:
        session.until_busy()
        os.killpg(session.process.pid, signal.SIGINT)
        output, _ = session.process.communicate(timeout=20 + slack())
    assert session.process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in output
    assert "no tests ran" in output
