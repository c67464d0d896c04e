"""The soak of ci/bench in small: jobs of all kinds in one session, some of which fail."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "ci" / "bench"

pytestmark = pytest.mark.usefixtures("pytester", "nothing_left")


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


def test_a_job_that_passes_although_it_must_fail_is_counted():
    """No rank is the one that is to fail, so this job passes."""
    from soak import soak
    from soak_jobs import Task

    found = soak([Task(0, "failing", "raise_error", 1, culprit=1, defect="gelu")])
    assert found.counts["failing"] == {"false passes": 1}
    assert found.counts["known bad"] == found.counts["known good"] == {"": 1}
    assert len(found.problems) == 1
