"""Storage in 16 bits is that of parameters: buffers stay as the workload made them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import Cell, layouts, workloads

pytestmark = pytest.mark.usefixtures("one_rank")


class Rotary(nn.Module):
    """Positions as waves, whose frequencies 8 bits of mantissa do not hold."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((width,), 0.5))
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(width) / width))

    def forward(self, positions: Tensor) -> Tensor:
        angles = positions.unsqueeze(1) * self.frequencies
        return angles.cos().to(self.gain.dtype) * self.gain


class RotaryMoe(workloads.moe):
    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        model.position = Rotary(self.width)
        return model


DECLARATIONS = (
    "fresh_ranks",
    "may_leave",
    "pure",
    "supports",
    "uses_transformer_engine",
    "with_environment",
)
PARTS = ("compute_in", "resident")
"""What `layouts` has besides layouts."""

KEEPS_FP32 = ("autocast",)
"""Layouts that cast no parameter either."""

IN_RANKS = ("te_blocks", "te_experts", "te_linears")
"""Layouts that patch torch for good, so that no process of the tests' own can run them."""


@pytest.mark.parametrize(
    ("layout", "axes"),
    [
        *(
            (layout, {"precision": precision, "primary_weight": "bf16"})
            for layout in layouts.__all__
            if layout not in (*DECLARATIONS, *PARTS, *KEEPS_FP32, *IN_RANKS)
            for precision in ("bf16", "mxfp8")
        ),
        ("master_adamw", {"precision": "fp16", "primary_weight": "fp16"}),
        ("distributed_optimizer", {"precision": "fp16", "primary_weight": "fp16"}),
        ("fused_adam", {"precision": "fp16", "primary_weight": "fp16"}),
    ],
)
def test_buffers_keep_their_dtype(layout: str, axes: dict[str, str]) -> None:
    """Parameters are cast; frequencies have every bit, and a step can be trained with them."""
    cell = Cell(**axes)  # type: ignore[arg-type]
    workload = RotaryMoe(width=32, hidden=48)
    expected = workload.model(cell).position.frequencies
    engine = getattr(layouts, layout)(workload, cell)
    engine.forward_backward(1)
    (seen,) = (b for name, b in engine.named_buffers() if name.endswith("frequencies"))
    assert seen.dtype == torch.float32
    assert torch.equal(seen, expected)
    assert not torch.equal(seen, seen.bfloat16().float())
    assert {p.dtype for p in engine.model.parameters()} == {
        {"bf16": torch.bfloat16, "fp16": torch.float16}[cell.primary_weight]
    }
