"""A decorator that declares which precisions and primary weights a layout supports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from pytest_precision.errors import expected_but_got, named
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS, PRIMARY_WEIGHTS
from pytest_precision.workloads.base import Workload

L = TypeVar("L", bound=Callable[..., Any])

# AdamW in fp16 would divide by roots of second moments that are 0 there.
ON_PARAMETERS = {
    "fp32": ("fp32", "bf16"),
    "bf16": ("fp32", "bf16"),
    "fp16": ("fp32",),
    "quantized": ("fp32", "bf16"),
}
"""The cells that a layout supports if its optimizer updates the resident parameters."""


def supports(
    primary_weights: Mapping[str, Sequence[str]], *, fused: Sequence[str] = ()
) -> Callable[[L], L]:
    """Declare which precisions and primary weights a layout takes; it then refuses all others.

        @layouts.supports({"bf16": ["bf16"], "quantized": ["bf16", "quantized"]}, fused=["bf16"])
        def mine(workload, cell): ...

    A layout without the decorator is given every cell.

    Args:
        primary_weights: precision to the primary weights that parameters can be stored in;
            `quantized` stands for every precision that quantizes.
        fused: precisions in which the GEMM can accumulate weight gradients in fp32, or `quantized`.

    Raises:
        TypeError: for a text in place of several.
        ValueError: for a precision or a primary weight that no cell has.
    """
    for name, row in {**primary_weights, "fused": fused}.items():
        if isinstance(row, str):
            raise TypeError(expected_but_got("a list of names", named(name, row), "write [...]"))
    weights = {weight for row in primary_weights.values() for weight in row}
    _expect_all("precisions", [*primary_weights, *fused], (*PRECISIONS, "quantized"))
    _expect_all("primary_weights", weights, PRIMARY_WEIGHTS)
    stored = {name: row for key, row in primary_weights.items() for name in _precisions(key)}
    fusing = [name for key in fused for name in _precisions(key)]

    def declare(layout: L) -> L:
        @wraps(layout)
        def checked(workload: Workload, cell: Cell, **options: Any) -> Any:
            _expect(cell, layout.__name__, "precision", list(stored))
            _expect(cell, layout.__name__, "primary_weight", stored[cell.precision])
            fusion = [False, True] if cell.precision in fusing else [False]
            _expect(cell, layout.__name__, "grad_accum_fusion", fusion)
            return layout(workload, cell, **options)

        return cast(L, checked)

    return declare


def _precisions(key: str) -> list[str]:
    quantized = [name for name, precision in PRECISIONS.items() if precision.quantized]
    return quantized if key == "quantized" else [key]


def _expect_all(argument: str, names: Iterable[str], supported: Sequence[str]) -> None:
    for value in names:
        if value not in supported:
            raise ValueError(
                expected_but_got(
                    f"{argument} of {', '.join(supported)}",
                    f"{value!r} ({type(value).__name__})",
                    "name those that the layout can do",
                )
            )


def _expect(cell: Cell, layout: str, axis: str, choices: Sequence[object]) -> None:
    value = getattr(cell, axis)
    if value not in choices:
        where = "" if axis == "precision" else f" in {cell.precision}"
        raise ValueError(
            f"layout {layout} knows {axis} {', '.join(map(str, choices))}{where} but the cell has "
            f"{axis}={value!r}; leave it out of the matrix or use another layout"
        )


computes_in_bf16 = supports(
    {"bf16": ["bf16"], "quantized": ["bf16", "quantized"]}, fused=["bf16", "quantized"]
)
"""Declares that a layout's layers compute in bf16, whatever their weights are stored in."""
