"""What a layout declares that it supports: other cells are refused before it does anything."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_precision import Cell, layouts
from pytest_precision.matrix.precisions import PRECISIONS, Precision, Recipe

WORKLOAD: Any = object()


@layouts.supports(
    {"bf16": ["fp32", "bf16"], "quantized": ["bf16", "quantized"]}, fused=["quantized"]
)
def mine(workload: object, cell: Cell, *, option: int = 0) -> tuple[object, Cell, int]:
    """Stands for a layout of a user: tells what it was called with."""
    return workload, cell, option


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (Cell("fp32"), "layout mine knows precision bf16, fp8_delayed, .*nvfp4 but the cell has"),
        (Cell("bf16", "fp16"), "knows primary_weight fp32, bf16 in bf16 but .*='fp16'; leave"),
        (Cell("mxfp8", "fp32"), "knows primary_weight bf16, quantized in mxfp8 but .*='fp32'"),
        (Cell("bf16", grad_accum_fusion=True), "knows grad_accum_fusion False in bf16 but"),
    ],
)
def test_other_cells_are_refused(cell: Cell, words: str) -> None:
    """With the layout, what it knows, and the value that the cell has."""
    with pytest.raises(ValueError, match=words):
        mine(WORKLOAD, cell)


@pytest.mark.parametrize(
    "cell", [Cell("bf16", "fp32"), Cell("nvfp4", "quantized", grad_accum_fusion=True)]
)
def test_its_own_cells_reach_a_layout_with_all_options(cell: Cell) -> None:
    """And it keeps its name, by which the ranks import it."""
    assert mine(WORKLOAD, cell, option=3) == (WORKLOAD, cell, 3)
    assert (mine.__module__, mine.__qualname__) == (__name__, "mine")


def test_quantized_is_every_precision_that_quantizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is added to the table too: no layout has to name it."""
    row = Precision("bf16", Recipe("mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3"))
    monkeypatch.setitem(PRECISIONS, "new", row)
    declared = layouts.supports({"quantized": ["bf16"]})(mine.__wrapped__)  # type: ignore[attr-defined]
    assert declared(WORKLOAD, Cell("new"))[1].precision == "new"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"primary_weights": {"fp8": ["bf16"]}}, "expected precisions of fp32, .* but got 'fp8'"),
        ({"primary_weights": {"bf16": ["fp8"]}}, "expected primary_weights of fp32, .*got 'fp8'"),
        ({"primary_weights": {}, "fused": ["fp9"]}, r"got 'fp9' \(str\); name those"),
    ],
)
def test_what_no_cell_has_cannot_be_supported(arguments: dict[str, Any], words: str) -> None:
    """A slip of the pen would refuse the cells that were meant."""
    with pytest.raises(ValueError, match=words):
        layouts.supports(**arguments)
