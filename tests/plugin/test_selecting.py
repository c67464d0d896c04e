"""Selection, coverage and shards, as pytest carries them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations

import pytest

CELLS = 14
"""Number of cells of the suite."""

Run = Callable[..., pytest.RunResult]
Collect = Callable[..., list[str]]


def test_select(suite: pytest.Pytester) -> None:
    """Cells with other values are deselected; plain tests are none of the matrix's business."""
    args = "--precision-matrix", "--precision-select=precision=mxfp8"
    suite.runpytest_inprocess(*args).assert_outcomes(passed=8 + 1, deselected=CELLS - 8)


def test_select_by_default_value(suite: pytest.Pytester, collect: Collect) -> None:
    """Built-in axes have a value in every cell, also where the marker does not name them."""
    names = collect("--precision-select=precision=fp32,bf16", "--precision-select=world_size=1")
    assert [name.split("[")[0] for name in names] == [
        *["test_grouped"] * 2,
        *["test_sequences"] * 2,
        "test_plain",
    ]


def test_select_by_an_axis_of_one_test(suite: pytest.Pytester, collect: Collect) -> None:
    """The cells of a test without the axis are dropped."""
    names = collect("--precision-select=glu=32")
    assert len(names) == 6 + 1
    assert not any(name.startswith("test_sequences") for name in names)


def test_deselected(suite: pytest.Pytester) -> None:
    """What is left out is deselected, so that pytest counts it."""
    result = suite.runpytest_inprocess("--precision-matrix", "--precision-coverage=smoke")
    result.assert_outcomes(passed=2 + 1, deselected=CELLS - 2)


def test_smoke(suite: pytest.Pytester, collect: Collect) -> None:
    """Smoke is one cell a test, of the selected ones."""
    names = collect("--precision-coverage=smoke", "--precision-select=world_size=2,1")
    assert names == ["test_grouped[bf16-bf16-w1-glu_0]", "test_sequences[train4]", "test_plain"]
    names = collect("--precision-coverage=smoke", "--precision-select=world_size=2")
    assert names == ["test_grouped[bf16-bf16-w2-glu_0]", "test_plain"]


def test_pairwise(suite: pytest.Pytester, collect: Collect) -> None:
    """Pairwise keeps every pair of values that occurs among the selected cells."""
    args = ["--precision-select=precision=bf16,mxfp8"]
    every = [tuple(name.split("-")) for name in collect(*args) if "grouped" in name]
    names = collect(*args, "--precision-coverage=pairwise")
    chosen = [tuple(name.split("-")) for name in names if "grouped" in name]
    assert set(chosen) < set(every)
    for a, b in combinations(range(4), 2):
        assert {(row[a], row[b]) for row in chosen} == {(row[a], row[b]) for row in every}


def test_coverage_of_a_marker(pytester: pytest.Pytester, collect: Collect) -> None:
    """A marker's coverage beats the command line."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.precision_matrix(world_size=[1, 2, 3], coverage="full")
        def test_a(cell): pass

        @pytest.mark.precision_matrix(world_size=[1, 2, 3])
        def test_b(cell): pass
        """
    )
    names = collect("--precision-coverage=smoke")
    assert Counter(name[:6] for name in names) == {"test_a": 3, "test_b": 1}


@pytest.mark.parametrize("count", [2, 3])
def test_shards(suite: pytest.Pytester, collect: Collect, count: int) -> None:
    """The shards share the cells out; plain tests run on every runner."""
    shares = [collect(f"--precision-shard={index}/{count}") for index in range(1, count + 1)]
    assert all("test_plain" in share for share in shares)
    together = Counter(name for share in shares for name in share)
    assert together == Counter(dict.fromkeys(collect(), 1) | {"test_plain": count})


@pytest.mark.parametrize(
    "others", [["-k", "w2"], ["--precision-select=glu=32"], ["-m", "precision_matrix"]]
)
def test_shards_beside_other_filters(
    suite: pytest.Pytester, collect: Collect, others: list[str]
) -> None:
    """Whether a cell belongs to a shard depends on nothing but the cell."""
    for index in (1, 2):
        share = collect(f"--precision-shard={index}/2")
        filtered = collect(*others)
        both = collect(f"--precision-shard={index}/2", *others)
        assert both == [name for name in share if name in filtered]


def test_filters_with_workers(suite: pytest.Pytester, collect: Collect, run: Run) -> None:
    """Workers make the same choice as a process alone, and share the cells of their runner."""
    args = "--precision-shard=1/2", "--precision-coverage=pairwise", "--precision-select=glu=0"
    chosen = collect(*args)
    assert 1 < len(chosen) < CELLS
    run("--precision-matrix", *args).assert_outcomes(passed=len(chosen))
