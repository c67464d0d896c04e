"""Parameters that are frozen, or that a step does not use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import layouts
from pytest_precision.cell import Cell
from pytest_precision.check import Parity, ParityError
from pytest_precision.workloads.perceptron import Mlp

ParityIn = Callable[[Cell], Parity]

REPLICATED = partial(layouts.master_adamw, main_grad=True)
OVERLAPPED = partial(layouts.distributed_optimizer, overlap_grad_reduce=True)


class Frozen(Mlp):
    """A vector and a weight of a linear layer that are not trained, as beside an adapter."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        next(model.parameters()).requires_grad_(False)
        linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
        linears[-1].weight.requires_grad_(False)
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [
            {**group, "params": [p for p in group["params"] if p.requires_grad]}
            for group in super().groups(model)
        ]


class Unused(Mlp):
    """A parameter that no forward reads."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        model.unused = nn.Parameter(torch.full((40,), 0.5))
        return model


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_frozen_parameters_are_left_alone(
    parity_in: ParityIn, precision: str, overlap: bool
) -> None:
    """They have neither gradients nor masters in the buffers, and agree with replicated ones."""
    cell = Cell(precision, "bf16", sequence="train2-eval-train-save-load-train", world_size=2)
    options = {"overlap_grad_reduce": overlap, "overlap_param_gather": overlap}
    parity_in(cell).check(
        partial(layouts.distributed_optimizer, **options), REPLICATED, workload=Frozen
    )


def test_unused_parameters_have_gradients_of_zero(parity_in: ParityIn) -> None:
    """In buffers there is no other way: weight decay moves them on both sides."""
    cell = Cell("bf16", sequence="train2-eval-train-save-load-train", world_size=2)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=Unused)


def test_a_bucket_that_never_was_reduced_is_refused(parity_in: ParityIn) -> None:
    """Nobody would have summed it, on either side."""
    cell = Cell("bf16", sequence="train2", world_size=2)
    words = "expected gradients of unused in the last microbatch but got none"
    with pytest.raises(ParityError, match=words):
        parity_in(cell).check(
            partial(OVERLAPPED, overlap_param_gather=True), OVERLAPPED, workload=Unused
        )
