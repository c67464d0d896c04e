"""One pool for all tests of this folder: a test that breaks its group leaves the next a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_precision.ranks import RankPool


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[RankPool]:
    ranks = RankPool(timeout=30)
    ranks.run(2, os.getpid)  # the fork server imports torch: no test's own time
    yield ranks
    ranks.close()


@pytest.fixture
def pool(shared_pool: RankPool) -> RankPool:
    return shared_pool
