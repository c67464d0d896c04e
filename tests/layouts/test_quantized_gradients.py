"""Gradients of quantized cells are computed once more in the cell's own formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import both_sides
import planted_quantization
import pytest
from torch import Tensor

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
from pytest_precision.layouts.replicated import MainGradEngine
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


class Doubles(MainGradEngine):
    """Has gradients twice as large as they should be."""

    def backward(self, loss: Tensor) -> None:
        super().backward(2 * loss)


def doubles(workload: Workload, cell: Cell, *, again: bool = False) -> Engine:
    return planted_quantization.planted_main_grad(workload, cell, kind=Doubles)


@pytest.mark.parametrize("primary", ["bf16", "quantized"])
@pytest.mark.parametrize("precision", QUANTIZED)
def test_the_right_layout_is_near_the_plain_loop(
    verdict_of: Callable[..., Verdict], precision: str, primary: str
) -> None:
    """A format rounds on both sides alike, so that sums in bf16 are all that differs."""
    cell = Cell(precision, primary, sequence="train3")
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
    cell = Cell("mxfp8", "quantized", fusion, "train3") if fusion else Cell("mxfp8", "fp32")
    sides = (masters, partial(masters, again=True)) if fusion else (layouts.adamw, plain)
    verdict = verdict_of(*sides, cell=cell, workload=both_sides.Small)
    assert verdict.oracle is not None
    assert verdict.oracle["candidate"]["gradients"]["worst"] < 1 / 16


def plain(workload: Workload, cell: Cell) -> Engine:
    return layouts.adamw(workload, cell)


@pytest.mark.parametrize(
    ("name", "precision", "words"),
    [
        ("DropsLast", "nvfp4", "microbatch 5 is left out"),
        ("RepeatsFirst", "fp8_block", "microbatch 0 counts twice"),
        ("NeverDivided", "fp8_delayed", "it is not divided by the tokens"),
        ("DividedTwice", "mxfp8", "it is divided by the microbatches, too"),
        ("AlwaysTheFirst", "fp8_current", "its microbatches count"),
        ("StepBefore", "mxfp8", "the microbatches are those of the evaluation"),
        ("DataFromTheStart", "fp8_block", "the microbatches are those of step 1"),
        ("DoubledExperts", "mxfp8", "it is 2 times what it should be"),
        ("NegatedExpert", "nvfp4", "it is -1 times what it should be"),
        ("LostExpert", "fp8_delayed", ""),
        ("TiedTwice", "fp8_current", "it is 2 times what it should be"),
    ],
)
def test_a_defect_of_both_sides_is_caught(
    verdict_of: Callable[..., Verdict], name: str, precision: str, words: str
) -> None:
    """The rule of accumulation is named as it is without quantization."""
    entry = both_sides.ENTRIES[name]
    sides = (partial(side, name=name) for side in (both_sides.planted, both_sides.again))
    cell = entry.cell.replace(precision=precision, primary_weight="bf16")
    verdict = verdict_of(*sides, cell=cell, workload=entry.workload)
    assert (verdict.outcome, verdict.ruling.gate) == ("fail", "workload_gradients")
    assert words in verdict.headline


def test_a_defect_beside_bytes_is_caught(verdict_of: Callable[..., Verdict]) -> None:
    """Weights that are stored as bytes are put into the plain loop as bytes."""
    cell = Cell("mxfp8", "quantized", sequence="train2")
    verdict = verdict_of(doubles, partial(doubles, again=True), cell=cell, workload=workloads.mlp)
    assert verdict.ruling.gate == "workload_gradients"
    assert "it is 2 times what it should be" in verdict.headline


def test_scales_that_are_not_shown_are_named(verdict_of: Callable[..., Verdict]) -> None:
    """Experts in one layer keep the scales of delayed scaling together."""
    cell = Cell("fp8_delayed", "bf16", sequence="train2")
    sides = layouts.grouped_experts, layouts.discrete_experts
    verdict = verdict_of(*sides, cell=cell, workload=MOE)
    assert verdict.oracle is not None
    silent = verdict.oracle["candidate"]["gradients"]["silent"]
    assert silent.startswith("its engine shows no whole blocks.0.experts.0.up.quantizers")
