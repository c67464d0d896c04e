"""Selection: by value, by coverage, by shard."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_precision import Cell
from pytest_precision.matrix.axes import build
from pytest_precision.matrix.selection import covering, in_shard, matches, unselectable

CELL = Cell("mxfp8", grad_accum_fusion=True, world_size=2, extra=(("glu", None), ("lr", 0.1)))


@pytest.mark.parametrize(
    ("axis", "values", "kept"),
    [
        ("precision", ("bf16", "mxfp8"), True),
        ("precision", ("bf16",), False),
        ("primary_weight", ("bf16",), True),
        ("world_size", ("2",), True),
        ("world_size", ("02",), False),
        ("grad_accum_fusion", ("true",), True),
        ("grad_accum_fusion", ("True",), True),
        ("grad_accum_fusion", ("1",), False),
        ("glu", ("none",), True),
        ("lr", ("0.1",), True),
        ("rotation", ("true",), False),
    ],
)
def test_matches(axis: str, values: tuple[str, ...], kept: bool) -> None:
    """A cell is kept for the text of its value, defaults included; without the axis it is not."""
    assert matches(CELL, ((axis, values),)) is kept


def test_matches_every_axis() -> None:
    """A cell is kept only if every axis of the selection agrees."""
    assert matches(CELL, (("precision", ("mxfp8",)), ("world_size", ("2",))))
    assert not matches(CELL, (("precision", ("mxfp8",)), ("world_size", ("1",))))
    assert matches(CELL, ())


@pytest.mark.parametrize(
    ("axis", "value", "known"),
    [
        (
            "colour",
            "red",
            "precision, primary_weight, grad_accum_fusion, sequence, world_size, glu",
        ),
        ("precision", "bf8", "bf16, mxfp8"),
        ("precision", "fp32", "bf16, mxfp8"),
        ("glu", "7", "0, 32"),
        ("grad_accum_fusion", "maybe", "false"),
    ],
)
def test_unknown(axis: str, value: str, known: str) -> None:
    """An axis or a value that no collected cell has is refused with those that they have."""
    cells = build((), {"precision": ["bf16", "mxfp8"], "glu": [0, 32]}).cells
    (refusal,) = unselectable(((axis, (value,)),), cells)
    assert known in refusal
    assert value in refusal or axis in refusal


def test_unknown_beside_known() -> None:
    """A known value does not excuse an unknown one, nor one unknown axis another."""
    cells = build((), {"precision": ["bf16", "mxfp8"]}).cells
    select = (("precision", ("bf16", "bf8")), ("glu", ("1",)), ("tp", ("1",)))
    assert len(unselectable(select, cells)) == 3


def test_known_but_not_together() -> None:
    """A selection that no cell fulfils is refused, although each value occurs."""
    cells = [Cell("mxfp8", "quantized"), Cell("bf16", "bf16")]
    select = (("precision", ("bf16",)), ("primary_weight", ("quantized",)))
    (refusal,) = unselectable(select, cells)
    assert "precision=bf16 and primary_weight=quantized" in refusal
    assert unselectable(select[:1], cells) == []


def test_coverages() -> None:
    """Full is every cell, smoke is one, pairwise is in between and in order."""
    cells = build((), {"precision": ["bf16", "fp32"], "a": [0, 1], "b": [0, 1]}).cells
    assert covering(cells, "full") == list(cells)
    assert covering(cells, "smoke") == [cells[0]]
    few = covering(cells, "pairwise")
    assert len(few) == 4
    assert few == [cell for cell in cells if cell in few]


def test_pairwise_tells_values_apart() -> None:
    """1, 1.0 and True are three values of an axis, although they are equal."""
    cells = build((), {"a": [1, 1.0, True], "b": [0, 1]}).cells
    assert len(covering(cells, "pairwise")) == 6


def test_coverage_of_nothing() -> None:
    """A test whose cells were all left out has nothing to cover."""
    assert covering([], "pairwise") == covering([], "smoke") == []


@given(st.text("az019_-.:/[]é"), st.integers(1, 50))
def test_shards_are_a_partition(nodeid: str, count: int) -> None:
    """Every test belongs to exactly one shard, for every number of shards."""
    assert sum(in_shard(nodeid, (index, count)) for index in range(1, count + 1)) == 1


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_shards_are_even(count: int) -> None:
    """Ids that differ in few places spread over the shards."""
    axes = {"world_size": [1, 2], "a": list(range(10)), "b": list(range(20)), "c": [True, False]}
    ids = build((), axes).ids
    sizes = Counter(
        next(n for n in range(count) if in_shard(f"t.py::t[{i}]", (n + 1, count))) for i in ids
    )
    assert max(sizes.values()) <= 1.25 * len(ids) / count


def test_a_file_whose_name_is_no_text_has_a_shard() -> None:
    """Whatever the locale says of its bytes: jobs of two locales share one matrix."""
    shards = [(index, 5) for index in range(1, 6)]
    name = "test_é.py::t[fp32]"
    in_ascii = name.encode().decode("ascii", "surrogateescape")
    assert [in_shard(in_ascii, one) for one in shards] == [in_shard(name, one) for one in shards]
    assert sum(in_shard("test_\udce9.py::t[fp32]", one) for one in shards) == 1
