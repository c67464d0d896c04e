"""What runs at night alone, and the guard of it that stays in `ci/test`.

Each test with the marker `nightly` has a row in one of the tables `tests/night/*.toml`:

    [[moved]]
    tests = "tests/te/test_rope.py::test_of_all_kinds"  # node id, or a pattern of fnmatch for it
    count = 24                                          # how many tests that is
    seconds = 31.5                                      # of processor, in all; see below
    rule = "Rotary embeddings are those of Transformer Engine."
    guard = "tests/te/test_rope.py::test_of_all_kinds[*-bf16]"  # what `ci/test` still runs

Seconds are those of a run at night, or, where nobody has measured one, those that as many of its
neighbours by day take. `tests/test_night.py` holds the tables against what pytest collects.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from pytest_precision.matrix.selection import pairwise

ALL_TESTS = pytest.StashKey[list[pytest.Item]]()
"""What pytest has collected before it leaves out the tests of the night."""


def pairs_by_day(
    rows: Sequence[Sequence[Any]], keys: Sequence[Sequence[Hashable]] | None = None
) -> list[Any]:
    """Return each row as the parameters of a test: those beyond pairwise coverage run at night.

    Args:
        rows: one row a test, one column an argument; which rows run by day is the package's own
            pairwise coverage of their values, the same in each session.
        keys: per row what stands for its values where they cannot be hashed or compared.
    """
    by_day = set(pairwise([tuple(row) for row in keys or rows]))
    return [
        pytest.param(*row, marks=() if index in by_day else pytest.mark.nightly)
        for index, row in enumerate(rows)
    ]
