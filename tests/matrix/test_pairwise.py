"""Pairwise coverage: complete by a property test, small by measurement."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_precision.matrix.selection import pairwise

Rows = list[tuple[int, ...]]


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Some rows of a product of columns, as a matrix is after senseless cells are gone."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    rows = list(product(*map(range, sizes)))
    kept = draw(st.randoms(use_true_random=False))
    share = draw(st.sampled_from([0.2, 0.6, 1.0]))
    return [row for row in rows if kept.random() < share] or rows[:1]


def pairs(rows: Rows) -> set[tuple[tuple[int, int], ...]]:
    """Every pair of values in two columns that occurs in a row."""
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


def fewest(rows: Rows) -> int:
    """A bound from below: no row has two of the pairs in the same two columns."""
    columns = combinations(range(len(rows[0])), 2)
    return max(len({(row[a], row[b]) for row in rows}) for a, b in columns)


@given(tables())
def test_every_pair_is_covered(rows: Rows) -> None:
    """Every pair that occurs in some row occurs in a chosen row."""
    chosen = pairwise(rows)
    assert chosen == sorted(set(chosen))
    assert pairs([rows[index] for index in chosen]) == pairs(rows)


@given(tables())
def test_no_row_is_superfluous(rows: Rows) -> None:
    """Without any one of the chosen rows a pair would be missing."""
    chosen = [rows[index] for index in pairwise(rows)]
    for index in range(len(chosen)):
        assert pairs(chosen[:index] + chosen[index + 1 :]) < pairs(rows)


@given(tables())
def test_deterministic(rows: Rows) -> None:
    """Equal rows give an equal choice: every worker and every runner must make the same."""
    assert pairwise(rows) == pairwise(list(rows))


@pytest.mark.parametrize(
    ("sizes", "most"),
    [((3, 2, 2, 3, 2), 9), ((3,) * 4, 9), ((2,) * 8, 8), ((8, 4, 2, 10, 3), 80), ((6,) * 4, 48)],
)
def test_few_rows(sizes: tuple[int, ...], most: int) -> None:
    """The choice stays near the bound from below on matrices of usual shapes."""
    rows = list(product(*map(range, sizes)))
    chosen = len(pairwise(rows))
    assert fewest(rows) <= chosen <= most


def test_few_rows_on_average() -> None:
    """Over random matrices with holes the choice is within 5 % of the bound from below."""
    generator = random.Random(0)
    chosen = bound = 0
    for _ in range(100):
        sizes = [generator.randint(2, 5) for _ in range(generator.randint(2, 5))]
        rows = [row for row in product(*map(range, sizes)) if generator.random() < 0.8]
        chosen += len(pairwise(rows or [(0,) * len(sizes)]))
        bound += fewest(rows or [(0,) * len(sizes)])
    assert bound <= chosen <= 1.05 * bound


def test_one_column_that_varies() -> None:
    """Where only one column has several values, all of them are covered."""
    assert pairwise([(0, 7), (1, 7), (2, 7)]) == [0, 1, 2]
