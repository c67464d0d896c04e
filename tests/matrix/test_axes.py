"""Matrix: axes to cells and ids; what makes no sense; what is refused."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pytest_precision import Cell
from pytest_precision.errors import MatrixError
from pytest_precision.matrix.axes import build
from pytest_precision.matrix.cell import BUILT_IN_AXES
from pytest_precision.matrix.precisions import PRECISIONS, PRIMARY_WEIGHTS
from pytest_precision.options import MARKER_OPTIONS

DESIGN = {
    "precision": ["bf16", "mxfp8", "nvfp4"],
    "primary_weight": ["bf16", "quantized"],
    "grad_accum_fusion": [False, True],
    "sequence": ["train4", "train2-eval-train2", "train2-save-load-train2"],
    "world_size": [1, 2],
}


def test_ids_and_cells_belong_together() -> None:
    """An id names the values of its cell, axis by axis."""
    cells = dict(zip(*reversed(build((), DESIGN)[:2]), strict=True))
    cell = cells["mxfp8-quantized-fused-train2-eval-train2-w2"]
    assert list(cell.axes.values()) == ["mxfp8", "quantized", True, "train2-eval-train2", 2]
    assert "bf16-bf16-unfused-train4-w1" in cells


def test_senseless_cells_are_counted() -> None:
    """Cells that make no sense are not made, and counted by reason."""
    matrix = build((), DESIGN)
    assert len(matrix.cells) == len(matrix.ids) == 72 - 12
    assert matrix.not_made == {"precision bf16 has no quantized format": 12}
    assert not any(c.precision == "bf16" and c.primary_weight == "quantized" for c in matrix.cells)


def test_each_reason_has_its_count() -> None:
    """Different reasons are counted apart."""
    axes = {"precision": ["fp32", "bf16", "mxfp8"], "primary_weight": ["quantized"], "a": [1, 2]}
    assert list(build((), axes).not_made.values()) == [2, 2]


def test_order_of_built_in_axes() -> None:
    """Built-in axes come in their own order, whatever the marker's; ids stay when it is edited."""
    backwards = dict(reversed(DESIGN.items()))
    assert build((), backwards).ids == build((), DESIGN).ids


def test_order_of_axes_of_the_users_own() -> None:
    """The user's own axes follow in the marker's order; the last varies fastest."""
    axes = {"beta": [1, 2], "precision": ["bf16"], "alpha": ["x", "y"]}
    ids = ["bf16-beta_1-alpha_x", "bf16-beta_1-alpha_y", "bf16-beta_2-alpha_x"]
    assert list(build((), axes).ids[:3]) == ids
    assert build((), axes).cells[0].extra == (("beta", 1), ("alpha", "x"))


def test_only_named_axes() -> None:
    """An axis that the marker does not name is at its default and not in the id."""
    (cell,) = build((), {"world_size": [3], "timeout": 5}, MARKER_OPTIONS).cells
    assert (cell.precision, cell.sequence) == ("fp32", "train4")
    assert build((), {"world_size": [3], "timeout": 5}, MARKER_OPTIONS).ids == ("w3",)


def test_no_axes() -> None:
    """A marker without axes makes one cell."""
    matrix = build((), {})
    assert (matrix.ids, len(matrix.cells)) == (("defaults",), 1)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (32, "glu_32"),
        (-1, "glu_-1"),
        (0.5, "glu_0.5"),
        (1e-05, "glu_1e-05"),
        (True, "glu"),
        (False, "no_glu"),
        (None, "glu_none"),
        ("fast", "glu_fast"),
        ("a b/c[d]::é", "glu_a_b_c_d____"),
    ],
)
def test_tokens(value: object, token: str) -> None:
    """A value of the user's own axis reads as name and value, in ASCII that shells leave alone."""
    assert build((), {"glu": [value]}).ids == (token,)


texts = st.text("aZ1_-.+=/ :[]é\n")
plain = st.one_of(texts, st.integers(), st.floats(), st.booleans(), st.none())
own_axes = st.dictionaries(
    st.sampled_from(["a", "no_a", "glu", "b_1"]),
    st.lists(plain, min_size=1, max_size=4, unique_by=repr),
    max_size=3,
)


@given(own_axes)
def test_ids_are_unique(axes: dict[str, list[Any]]) -> None:
    """Every cell has an ASCII id of its own, unless the marker is refused."""
    try:
        matrix = build((), axes, MARKER_OPTIONS)
    except MatrixError:
        reject()
    assert len(set(matrix.ids)) == len(matrix.cells) == prod(map(len, axes.values()))
    assert all(cell_id.isascii() and cell_id.isprintable() for cell_id in matrix.ids)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"precision": "bf16"}, r"got precision='bf16' \(str\); write precision=\[value, ...\]"),
        ({"glu": 32}, r"got glu=32 \(int\).*or one of the options .*timeout"),
        ({"glu": {1, 2}}, r"\(set\)"),
        ({"glu": range(2)}, r"\(range\)"),
        ({"glu": []}, r"expected at least one value but got glu=\[\]"),
        ({"glu": [1, 2, 1]}, "expected each value of glu once but got 1 2 times"),
        ({"glu": [[1]]}, r"str, int, float, bool or None but got glu=\[1\] \(list\)"),
        ({"glu": [object]}, r"glu=<class 'object'> \(type\)"),
        ({"precision": ["bf8"]}, "one of fp32, bf16, .* but got precision='bf8'"),
        ({"primary_weight": [""]}, "got primary_weight=''"),
        ({"grad_accum_fusion": [1]}, "one of False, True but got grad_accum_fusion=1"),
        ({"world_size": [0]}, "int from 1 but got world_size=0"),
        ({"world_size": [True]}, "int from 1 but got world_size=True"),
        ({"sequence": ["train2-evil"]}, "position 7: 'evil' is no operation. Expected operations"),
        ({"a-b": [1]}, "whose name is an ASCII identifier but got 'a-b'"),
        ({"étape": [1]}, "ASCII identifier"),
        ({"lambda": [1]}, "ASCII identifier"),
        ({"replace": [1]}, "'replace', which a cell has already"),
        ({"axes": [1]}, "'axes', which a cell has already"),
        ({"extra": [1]}, "'extra', which a cell has already"),
        ({"__deepcopy__": [1]}, "which a cell has already"),
        ({"_private": [1]}, "which a cell has already"),
        ({"worldsize": [1]}, "write world_size"),
        ({"sequences": [1]}, "write sequence"),
        ({"glu": ["a/b", "a:b"]}, "got 'glu_a_b' twice"),
        ({"glu": [1, "1"]}, "got 'glu_1' twice"),
        ({"a": ["1", "1-b_2"], "b": ["3", "2-b_3"]}, "got 'a_1-b_2-b_3' twice"),
        (
            {"precision": ["bf16"], "primary_weight": ["quantized"]},
            "valid combination of axis values but got none: precision bf16 has no quantized format",
        ),
    ],
)
def test_refused(axes: dict[str, Any], message: str) -> None:
    """What is no axis with values is refused with its name, its value and what is known."""
    with pytest.raises(MatrixError, match=message):
        build((), axes, MARKER_OPTIONS)


def test_positional_argument() -> None:
    """Axes have names."""
    with pytest.raises(MatrixError, match=r"as keywords but got \['bf16'\] \(list\)"):
        build((["bf16"],), {})


def test_the_reference_has_the_axes_with_their_defaults() -> None:
    """Which precision a cell has, and in what its weights are stored, is what a test says least."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "axes.md").read_text()
    table = page.partition("| axis | values |")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`(.+?)`", part) for part in row.split("|")] for row in table.split("\n")]
    axes = {name: (values, default) for _, [name], values, default, _ in rows[2:]}
    assert tuple(axes) == BUILT_IN_AXES
    assert axes["precision"][0] == [*PRECISIONS]
    assert axes["primary_weight"][0] == [*PRIMARY_WEIGHTS]
    for name in set(axes) - {"primary_weight"}:
        assert axes[name][1] == [str(getattr(Cell(), name))]
    *own, others = axes["primary_weight"][1]
    stored = dict.fromkeys(PRECISIONS, others) | dict(zip(own[1::2], own[::2], strict=True))
    assert stored == {name: Cell(name).primary_weight for name in PRECISIONS}
