"""Blocks of a transformer in Transformer Engine's layers, which are fused more or less."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import te_wheel

from pytest_precision import Cell, Parity, layouts, workloads
from pytest_precision.layouts.transformer_engine.data_parallel import EngineInDdp
from pytest_precision.layouts.transformer_engine.transformer_blocks import with_blocks

ParityIn = Callable[[Cell], Parity]

GPT = partial(workloads.gpt, heads=2, head_width=16, depth=1, fixed_temperature=True)
SKIPPED = "train1-skip-eval-skip-save-load-train1"
RESTARTED = "save-train1-skip-eval-train1-save-restart-train1"


@pytest.mark.slow
@te_wheel.NEEDED
@pytest.mark.parametrize(
    ("layer", "precision", "primary", "fusion", "ranks", "sequence"),
    [
        ("LayerNormMLP", "fp8_delayed", "quantized", True, 2, RESTARTED),
        # In CI, the ready layouts of linear layers and experts have these.
        *(
            pytest.param("LayerNormMLP", *case, marks=pytest.mark.nightly)
            for case in (
                ("bf16", "bf16", True, 3, "train1-eval-train1"),
                ("mxfp8", "quantized", True, 1, SKIPPED),
                ("fp8_current", "quantized", False, 1, SKIPPED),
            )
        ),
        ("Linear", "fp8_block", "quantized", True, 1, SKIPPED),
        ("Linear", "nvfp4", "bf16", False, 2, "train1-eval-train1"),
    ],
)
def test_a_transformer_layer_is_its_parts(
    parity_in: ParityIn,
    layer: str,
    precision: str,
    primary: str,
    fusion: bool,
    ranks: int,
    sequence: str,
) -> None:
    """Caches, scales, checkpoints and weights are those of the modules that it is made of.

    Separate linear layers get a GELU that is rounded, whose amax is not that of the fused one, so
    in delayed and current scaling the parts are fused, too.
    """
    cell = Cell(precision, primary, fusion, sequence, ranks)
    candidate = partial(layouts.te_blocks, layer=layer)
    parity_in(cell).check(candidate, layouts.te_blocks, workload=GPT)


def test_attention_with_a_learned_temperature_is_refused() -> None:
    """Transformer Engine divides scores by a constant, so it would be another model."""
    cell = Cell("bf16")
    learned = GPT(fixed_temperature=False).model(cell)
    with pytest.raises(ValueError, match="expected attention with a fixed temperature but got"):
        with_blocks(learned, cell, layer="Linear")


def test_an_unknown_layer_is_refused() -> None:
    """The message names those that there are."""
    cell = Cell("bf16")
    with pytest.raises(ValueError, match=r"TransformerLayer.*got layer='Transformer'"):
        with_blocks(GPT().model(cell), cell, layer="Transformer")


def test_ddp_with_fused_accumulation_is_refused() -> None:
    """DDP reduces what autograd makes, and a fused GEMM adds to another buffer."""
    cell = Cell("bf16", grad_accum_fusion=True)
    with pytest.raises(ValueError, match="gradients that DDP can reduce but got grad_accum_fusion"):
        EngineInDdp(GPT(), cell, GPT().model(cell))
