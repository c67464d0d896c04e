"""The soak of ci/bench in small: many jobs in one session, some of which fail."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "ci" / "bench"

SEED = 219
"""Every kind of fault is among the jobs."""


@pytest.mark.usefixtures("pytester", "nothing_left")
def test_nothing_is_lost_and_nothing_grows(monkeypatch):
    """Each job ends as it must, and no process, descriptor, file or memory is left."""
    monkeypatch.syspath_prepend(BENCH)
    from faulty import FAULTS
    from soak import soak

    found = soak(60, SEED)
    assert set(found.endings) == {"done", *(fault.act.__name__ for fault in FAULTS)}
    assert found.problems == []
