"""Check the versions of pytest, which may be too old, and of torch, which may be untested."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pytest_precision.errors import expected_but_got

LOWEST_PYTEST = "8.1.1"

NEWEST_TORCH = "2.13"
"""The newest one that CI has."""


def refuse_old_pytest(version: str) -> None:
    """Raise if pytest is older than the package requires.

    Args:
        version: of pytest.

    Raises:
        pytest.UsageError: it is too old.
    """
    if _number(version) < _number(LOWEST_PYTEST):
        raise pytest.UsageError(
            expected_but_got(
                f"pytest {LOWEST_PYTEST} or later for pytest-precision",
                version,
                f"pip install 'pytest>={LOWEST_PYTEST}', or leave the plugin out: -p no:precision",
            )
        )


def untested_torch(version: str) -> Iterator[str]:
    """Yield a line if torch is newer than the newest tested release.

    Args:
        version: of torch.
    """
    if _number(version)[:2] > _number(NEWEST_TORCH):
        yield f"torch {version} is newer than {NEWEST_TORCH}, the newest that is tested"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
