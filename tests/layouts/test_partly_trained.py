"""Parameters that are frozen, or that a step does not use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import Cell, Parity, ParityError, layouts, workloads

ParityIn = Callable[[Cell], Parity]

NIGHTLY = pytest.mark.nightly

REPLICATED = partial(layouts.master_adamw, main_grad=True)
OVERLAPPED = partial(layouts.distributed_optimizer, overlap_grad_reduce=True)


def trained(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without frozen parameters."""
    return [
        {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
    ]


class Frozen(workloads.mlp):
    """A vector and a weight of a linear layer that are not trained, as beside an adapter."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        next(model.parameters()).requires_grad_(False)
        linear = next(m for m in model.blocks.modules() if isinstance(m, nn.Linear))
        linear.weight.requires_grad_(False)
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return trained(super().groups(model))


class Unused(workloads.mlp):
    """A parameter that no forward reads."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        model.unused = nn.Parameter(torch.full((40,), 0.5))
        return model


@pytest.mark.parametrize(
    ("precision", "primary_weight", "overlap"),
    [
        # CI has bytes with overlap; all buffers are laid out alike.
        pytest.param(*case, marks=() if case == ("mxfp8", "quantized", True) else NIGHTLY)
        for stored in (("bf16", "bf16"), ("mxfp8", "bf16"), ("mxfp8", "quantized"))
        for case in ((*stored, False), (*stored, True))
    ],
)
def test_frozen_parameters_are_left_alone(
    parity_in: ParityIn, precision: str, primary_weight: str, overlap: bool
) -> None:
    """They have neither gradients nor masters in the buffers, and agree with replicated ones."""
    sequence = "train-save-load-eval-train"
    cell = Cell(precision, primary_weight, sequence=sequence, world_size=2)
    options = {"overlap_grad_reduce": overlap, "overlap_param_gather": overlap}
    parity_in(cell).check(
        partial(layouts.distributed_optimizer, **options), REPLICATED, workload=Frozen
    )


def test_unused_parameters_have_gradients_of_zero(parity_in: ParityIn) -> None:
    """In buffers there is no other way: weight decay moves them on both sides."""
    cell = Cell("bf16", sequence="train-save-load-eval-train", world_size=2)
    parity_in(cell).check(layouts.distributed_optimizer, REPLICATED, workload=Unused)


def test_a_bucket_that_never_was_reduced_is_refused(parity_in: ParityIn) -> None:
    """Nobody would have summed it, on either side."""
    cell = Cell("bf16", sequence="train", world_size=2)
    words = "expected gradients of unused in the last microbatch but got none"
    with pytest.raises(ParityError, match=words):
        parity_in(cell).check(
            partial(OVERLAPPED, overlap_param_gather=True), OVERLAPPED, workload=Unused
        )


class FrozenExperts(workloads.moe):
    """Of some layers all experts are frozen, of one a single expert if `one` says so."""

    def __init__(self, *, one: bool = False) -> None:
        super().__init__(experts=3, depth=1)
        self.one = one

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        frozen = [p for name, p in model.named_parameters() if name.endswith("up.weight")]
        for parameter in frozen[:1] if self.one else frozen:
            parameter.requires_grad_(False)
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return trained(super().groups(model))


# In CI, bf16 weights are frozen above.
@pytest.mark.parametrize("primary_weight", [pytest.param("bf16", marks=NIGHTLY), "quantized"])
def test_frozen_experts(parity_in: ParityIn, primary_weight: str) -> None:
    """Whether they are stored together or not."""
    cell = Cell("mxfp8", primary_weight, sequence="train-save-swap-train", world_size=2)
    parity_in(cell).check(layouts.grouped_experts, layouts.discrete_experts, workload=FrozenExperts)


def test_a_single_weight_is_trained_whole_or_not_at_all(parity_in: ParityIn) -> None:
    """One tensor requires a gradient or it does not."""
    with pytest.raises(ParityError, match="expected all experts of a single weight to be trained"):
        parity_in(Cell("bf16", sequence="train")).check(
            layouts.grouped_experts,
            layouts.discrete_experts,
            workload=partial(FrozenExperts, one=True),
        )
