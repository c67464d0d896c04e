"""What an engine observes as its optimizer where Megatron-core makes one of experts alone."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.engine.groups import gradient
from pytest_precision.optim import FusedAdam
from pytest_precision.probes.lost_updates.measured import rule
from pytest_precision.recipes.megatron.placement import Chained


@pytest.mark.parametrize("decoupled", [True, False])
def test_chained_optimizers_read_the_gradients_that_each_of_them_reads(decoupled: bool) -> None:
    """The precision-aware optimizer reads `decoupled_grad`, and has no `grad`."""
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for weight in weights:
        weight.decoupled_grad = torch.ones(2)  # type: ignore[attr-defined]
    chained = Chained([FusedAdam([weight], use_decoupled_grad=decoupled) for weight in weights])
    found = [gradient(chained, weight) for weight in weights]  # type: ignore[arg-type]
    assert [one is not None for one in found] == [decoupled, decoupled]


def test_chained_optimizers_have_the_rule_of_the_one_that_updates() -> None:
    """Their own class claims none."""
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    kinds = FusedAdam([first]), torch.optim.SGD([second], lr=0.5)
    chained = Chained(kinds)
    second.grad = torch.ones(2)
    kinds[1].step()
    own = rule(chained, kinds[1].param_groups[0], second, second.grad)  # type: ignore[arg-type]
    assert own.compute(torch.ones(2).double(), *own.operands).tolist() == [-0.5, -0.5]
