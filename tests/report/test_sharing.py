"""Sharing: statements about failing cells are useful, and true."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from made_up import cell, matrix

from pytest_precision.report.sharing import explain, traits


def statements(cells):
    failing = [cell for cell in cells if cell.failing]
    passing = [cell for cell in cells if cell.status == "pass"]
    return [part.statement(failing) for part in explain(failing, passing)]


def fails_where(condition):
    return lambda axes: "fail" if condition(axes) else "pass"


AXES = {
    "precision": ["bf16", "mxfp8"],
    "primary_weight": ["bf16", "fp32"],
    "world_size": [1, 2, 3],
}


def test_one_value():
    """The value of one axis that tells all failing cells from all passing ones."""
    cells = matrix(fails_where(lambda axes: axes["primary_weight"] == "bf16"), **AXES)
    assert statements(cells) == [
        "all 6 failing cells have primary_weight=bf16; no passing cell has"
    ]


def test_several_values():
    """Or several of its values."""
    cells = matrix(fails_where(lambda axes: axes["world_size"] > 1), **AXES)
    assert statements(cells) == ["all 8 failing cells have world_size=2 or 3; no passing cell has"]


def test_two_axes_together():
    """Or the values of two axes, each of which passing cells have, too."""
    cells = matrix(
        fails_where(lambda axes: axes["precision"] == "bf16" and axes["world_size"] == 2),
        **AXES,
        seed=[0, 1],
    )
    assert statements(cells) == [
        "all 4 failing cells have precision=bf16 and world_size=2; no passing cell has both"
    ]


def test_two_axes_that_tell_alike():
    """Where either of two axes would do, both are named."""
    cells = matrix(
        fails_where(lambda axes: axes["precision"] == "mxfp8"),
        lambda axes: (axes["precision"] == "mxfp8") == (axes["primary_weight"] == "quantized"),
        precision=["bf16", "mxfp8"],
        primary_weight=["bf16", "quantized"],
        world_size=[1, 2],
    )
    assert statements(cells) == [
        "both failing cells have precision=mxfp8 and primary_weight=quantized; "
        "no passing cell has either"
    ]


def test_two_defects():
    """Two causes are two statements, the one of more cells first."""
    cells = matrix(
        fails_where(lambda axes: axes["world_size"] == 3 or axes["primary_weight"] == "bf16"),
        **AXES,
    )
    assert statements(cells) == [
        "6 of 8 failing cells have primary_weight=bf16; no passing cell has",
        "4 of 8 failing cells have world_size=3; no passing cell has",
    ]


def test_a_whole_test():
    """The test is an axis like any other."""
    cells = [
        *matrix(fails_where(lambda axes: True), test="test_a.py::test_b", **AXES),
        *matrix(test="test_a.py::test_c", **AXES),
    ]
    assert statements(cells) == [
        "all 12 failing cells have test=test_a.py::test_b; no passing cell has"
    ]


def test_one_failure_shares_nothing():
    """Of a single cell its name says as much."""
    cells = matrix(fails_where(lambda axes: axes == {"w": 2, "p": 1}), w=[1, 2, 3], p=[0, 1])
    assert statements(cells) == [""]


def test_unrelated_failures_share_nothing():
    """Two cells are named as quickly as two conditions."""
    failing = [("bf16", "fp32", 1), ("mxfp8", "bf16", 3)]
    cells = matrix(fails_where(lambda axes: tuple(axes.values()) in failing), **AXES)
    assert statements(cells) == [""]


def test_list_of_values_is_no_statement():
    """Two cells are named as quickly as two values."""
    cells = matrix(fails_where(lambda axes: axes["w"] != 2), w=[1, 2, 3])
    assert statements(cells) == [""]


def test_nothing_passes():
    """Where no cell passes there is nothing that passing cells lack."""
    assert statements(matrix(fails_where(lambda axes: True), **AXES)) == [""]


def test_expected_failures_are_on_neither_side():
    """A cell that fails as expected neither counts as failing nor as passing."""
    status = {1: "pass", 2: "fail", 3: "xfail"}
    cells = matrix(lambda axes: status[axes["world_size"]], **AXES)
    assert statements(cells) == ["all 4 failing cells have world_size=2; no passing cell has"]


def test_equal_values_of_other_types_differ():
    """1, True and '1' are three values of an axis."""
    cells = matrix(fails_where(lambda axes: axes["flag"] == "1"), flag=[1, True, "1"], w=[1, 2])
    assert statements(cells) == ["both failing cells have flag=1; no passing cell has"]


def test_axis_that_some_cells_lack():
    """What a failing cell lacks is not said of all failing cells."""
    cells = [
        *(cell("fail", {"a": 1, "b": n}) for n in range(3)),
        cell("fail", {"b": 3}),
        cell("pass", {"a": 2, "b": 4}),
    ]
    assert statements(cells)[0] == "3 of 4 failing cells have a=1; no passing cell has"


POINTS = st.lists(
    st.tuples(
        st.sampled_from(["fail", "error", "pass", "pass", "skip"]),
        st.fixed_dictionaries(
            {"a": st.sampled_from([0, 1]), "b": st.sampled_from([0, 1]), "c": st.integers(0, 2)},
            optional={"d": st.sampled_from([1, True, "1"])},
        ),
    ),
    min_size=4,
    max_size=20,
)


@given(POINTS)
def test_statements_are_true(points):
    """Every failing cell is in one part, has what is said of it, and no passing cell has."""
    cells = [cell(status, axes, number=n) for n, (status, axes) in enumerate(points)]
    failing = [cell for cell in cells if cell.failing]
    passing = [cell for cell in cells if cell.status == "pass"]
    assume(failing)
    parts = explain(failing, passing)
    assert sorted(c.number for part in parts for c in part.cells) == [c.number for c in failing]
    for part in parts:
        if part.conditions:
            needed = any if part.alone else all
            assert all(part.holds(cell) for cell in part.cells)
            assert not any(
                needed(condition.holds(traits(other)) for condition in part.conditions)
                for other in passing
            )
            having = sum(part.holds(cell) for cell in failing)
            everyone = "both" if having == 2 else f"all {having}"
            who = everyone if having == len(failing) else f"{having} of {len(failing)}"
            assert part.statement(failing).startswith(f"{who} failing cells have ")
