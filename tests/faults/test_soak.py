"""The soak of ci/bench in small: jobs of all kinds in one session, some of which fail."""

from __future__ import annotations

from pathlib import Path

import pytest

# The sessions forget what they have imported, and this cannot be imported twice.
import torch.distributed.fsdp  # noqa: F401

BENCH = Path(__file__).parents[2] / "ci" / "bench"

JOBS, SEED = 18, 2623
"""All kinds, each at least twice; a patch, a count and a mesh come again on as many ranks."""

pytestmark = pytest.mark.usefixtures("pytester", "nothing_left")


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


@pytest.mark.nightly
def test_nothing_is_wrong_and_nothing_is_lost_or_left():
    """Each job ends as it must, and what runs after it does not notice."""
    from soak import CHECKS, soak
    from soak_jobs import plan

    found = soak(plan(JOBS, SEED))
    assert found.problems == []
    assert set(found.counts) == set(CHECKS)


def test_a_job_that_passes_although_it_must_fail_is_counted():
    """No rank is the one that is to fail, so this job passes."""
    from soak import soak
    from soak_jobs import Task

    found = soak([Task(0, "failing", "raise_error", 1, culprit=1, defect="gelu")])
    assert found.counts["failing"] == {"false passes": 1}
    assert found.counts["known bad"] == found.counts["known good"] == {"": 1}
    assert len(found.problems) == 1
