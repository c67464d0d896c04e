"""A workload whose gradients do not depend on its weights: optimizers can be compared for long.

Where gradients are computed with rounded weights, one weight that rounds another way changes all
gradients after it, and the runs of two optimizers that are an ulp apart part for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from one_step import finish_step
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload

Layout = Callable[[Workload, Cell], Engine]

SAME_MATHEMATICS = 1e-5
"""Largest difference of a weight, as a share of the largest total update, between implementations
of Adam that compute in fp32 and differ in the order and rounding of their operations only.

Transformer Engine's kernel and torch's AdamW were 2.4e-6 apart after 100 steps of 200 thousand
weights. Of this workload fp32 masters of the two are 1.8e-6 apart, the installed optimizers of
other frameworks up to 8.4e-6; bf16 moments are 5.5e-3 away.
"""


class SameGradients(Workload):
    """One matrix and a loss that is linear in it, of small integers: products and sums are exact.

    24576 elements are enough for 8-bit optimizers to quantize their state, and for exact ties.
    """

    max_norm = 0.05

    def model(self, cell: Cell) -> nn.Module:
        linear = nn.Linear(192, 128, bias=False)
        with torch.no_grad():
            # Up to 0.009: rounding a weight to fp32 is a millionth of the first update or less.
            linear.weight.copy_((linear.weight / 8).bfloat16())
        return linear.to(cell.device)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "lr": 1e-3, "weight_decay": 0.1}]

    def microbatches(self, cell: Cell, step: int) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(step)
        return [
            (
                torch.randint(-3, 4, (rows, 192), generator=generator).float(),
                torch.randint(-3, 4, (rows, 128), generator=generator).float(),
            )
            for rows in (3, 5, 4, 9, 7, 1)
        ]

    def tokens(self, microbatch: tuple[Tensor, Tensor]) -> int:
        return len(microbatch[0])

    def loss(self, model: nn.Module, microbatch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        inputs, targets = microbatch
        (weight,) = model.parameters()
        outputs = model(inputs.to(weight.dtype)).float()
        return (outputs * targets).sum(), len(inputs)


def steps(layout: Layout, count: int, cell: Cell) -> Iterator[Engine]:
    """One engine after each of its train steps; needs a process group of one rank."""
    torch.manual_seed(1)
    engine = layout(SameGradients(), cell)
    for step in range(1, count + 1):
        engine.forward_backward(step)
        finish_step(engine)
        yield engine


def trained(layout: Layout, count: int, cell: Cell) -> Engine:
    """The same after its last step."""
    *_, engine = steps(layout, count, cell)
    return engine


def weight(engine: Engine) -> Tensor:
    """The effective weight, fp32."""
    ((_, parameter),) = engine.masters()
    return engine.effective(parameter).detach().float().clone()


# The tests of a file train one layout for as many steps more than once.
@cache
def weight_after(layout: Layout, count: int, cell: Cell) -> Tensor:
    """The effective weight after so many train steps, fp32."""
    if count:
        return weight(trained(layout, count, cell))
    torch.manual_seed(1)
    return weight(layout(SameGradients(), cell))


def update_error(candidate: Layout, reference: Layout, count: int, cell: Cell) -> float:
    """Largest difference of a weight, as a share of the reference's largest total update."""
    ours, theirs = (weight_after(layout, count, cell) for layout in (candidate, reference))
    start = weight_after(reference, 0, cell)
    return float((ours - theirs).abs().max() / (theirs - start).abs().max())
