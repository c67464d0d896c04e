"""The end of pytest itself, while one rank works and the other is stopped."""

from __future__ import annotations

import signal

import pytest
from slack import slack

SUITE = """
    import pytest
    from around import busy

    @pytest.mark.world_size(2)
    def test_busy(ranks):
        ranks.run(busy, {folder!r})
"""

EXITS = """
    import os, threading, time
    from pathlib import Path
    import pytest
    from around import busy

    def leave():
        while not Path({folder!r}, "leave").exists():
            time.sleep(0.02)
        os._exit(7)

    @pytest.mark.world_size(2)
    def test_busy(ranks):
        threading.Thread(target=leave, daemon=True).start()
        ranks.run(busy, {folder!r})
"""

TIMES_OUT = """
    import pytest
    from around import busy, sum_of_ranks

    pytestmark = pytest.mark.world_size(2)

    def test_before(ranks):
        ranks.run(sum_of_ranks)

    @pytest.mark.timeout(1, method="thread")
    def test_busy(ranks):
        ranks.run(busy, {folder!r})
"""


def test_sigkill_leaves_nothing(session_of):
    """No code of the controller runs."""
    with session_of(SUITE) as session:
        session.until_busy()
        session.process.kill()
        session.process.communicate(timeout=20 + slack())
    assert session.process.returncode == -signal.SIGKILL


# The thread of pytest-timeout leaves so by day.
@pytest.mark.nightly
def test_an_exit_in_a_thread_leaves_nothing(session_of):
    """No handler runs in `os._exit`."""
    with session_of(EXITS) as session:
        session.until_busy()
        (session.folder / "leave").touch()
        session.process.communicate(timeout=20 + slack())
    assert session.process.returncode == 7


def test_the_thread_of_pytest_timeout_leaves_nothing(session_of):
    """That method leaves by `os._exit` as well."""
    pytest.importorskip("pytest_timeout")
    with session_of(TIMES_OUT) as session:
        output, _ = session.process.communicate(timeout=20 + slack())
    assert session.process.returncode == 1
    assert "Timeout" in output
