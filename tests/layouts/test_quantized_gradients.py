"""Gradients of quantized cells are computed once more in the cell's own formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import both_sides
import pytest

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Verdict,
    Workload,
    layouts,
    workloads,
)
from pytest_precision.matrix.precisions import PRECISIONS

QUANTIZED = [name for name, precision in PRECISIONS.items() if precision.quantized]
MOE = partial(workloads.moe, experts=3, depth=1)


@pytest.fixture
def verdict_of(parity_by: Callable[..., Parity]) -> Callable[..., Verdict]:
    """The verdict of a check in this process, whatever it is."""

    def check(*sides: Any, cell: Cell, workload: Any) -> Verdict:
        parity = parity_by(cell, ranks="inline")
        try:
            return parity.check(*sides, workload=workload)
        except ParityError as error:
            return error.verdict

    return check


def masters(workload: Workload, cell: Cell, *, again: bool = False) -> Engine:
    return layouts.master_adamw(workload, cell)


@pytest.mark.parametrize(
    ("precision", "primary"),
    [
        # In CI, bf16 weights are in delayed scaling, whose scales come of earlier steps; and one
        # precision has scales of a tensor, one of a block.
        *(
            pytest.param(
                precision,
                "quantized",
                marks=pytest.mark.nightly if precision in ("fp8_current", "fp8_block") else (),
            )
            for precision in QUANTIZED
        ),
        ("fp8_delayed", "bf16"),
        *(
            pytest.param(precision, "bf16", marks=pytest.mark.nightly)
            for precision in QUANTIZED
            if precision != "fp8_delayed"
        ),
    ],
)
def test_the_right_layout_is_near_the_plain_loop(
    verdict_of: Callable[..., Verdict], precision: str, primary: str
) -> None:
    """A format rounds on both sides alike, so that sums in bf16 are all that differs."""
    cell = Cell(precision, primary, sequence="train2")
    verdict = verdict_of(
        masters, partial(masters, again=True), cell=cell, workload=both_sides.Small
    )
    assert verdict.outcome == "pass"
    assert verdict.oracle is not None
    found = verdict.oracle["candidate"]["gradients"]
    assert found["judged"] > 20
    assert found["worst"] < 0.25


@pytest.mark.parametrize("fusion", [False, True], ids=["unfused", "fused"])
def test_sums_of_fp32_weights_are_the_plain_ones(
    verdict_of: Callable[..., Verdict], fusion: bool
) -> None:
    """Accumulated by the GEMM or not, within a sixteenth of the bound."""
    cell = Cell("mxfp8", "quantized" if fusion else "fp32", fusion, "train2")
    sides = (masters, partial(masters, again=True)) if fusion else (layouts.adamw, plain)
    verdict = verdict_of(*sides, cell=cell, workload=both_sides.Small)
    assert verdict.oracle is not None
    assert verdict.oracle["candidate"]["gradients"]["worst"] < 1 / 16


def plain(workload: Workload, cell: Cell) -> Engine:
    return layouts.adamw(workload, cell)


def test_scales_that_are_not_shown_are_named(verdict_of: Callable[..., Verdict]) -> None:
    """Experts in one layer keep the scales of delayed scaling together."""
    cell = Cell("fp8_delayed", "bf16", sequence="train2")
    sides = layouts.grouped_experts, layouts.discrete_experts
    verdict = verdict_of(*sides, cell=cell, workload=MOE)
    assert verdict.oracle is not None
    silent = verdict.oracle["candidate"]["gradients"]["silent"]
    assert silent.startswith("its engine shows no whole blocks.0.experts.0.up.quantizers")
