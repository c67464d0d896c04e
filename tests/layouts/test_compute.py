"""A model that computes in another dtype than it is stored in keeps its own parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_precision.layouts import compute_in


class Twice(nn.Module):
    """Calls one block under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, inputs: Tensor) -> Tensor:
        assert self.second.weight.dtype is inputs.dtype
        return self.second(self.first(inputs))


def test_a_block_with_two_names_keeps_its_parameters() -> None:
    """Under both names, after the forward and after the backward."""
    model = Twice()
    own = [*model.parameters()]
    output = compute_in(model, torch.bfloat16)(torch.ones(1, 4, dtype=torch.bfloat16))
    for _ in range(2):
        held = (model.first.weight, model.first.bias, model.second.weight, model.second.bias)
        assert all(a is b for a, b in zip(held, own + own, strict=True))
        output.sum().backward(retain_graph=True)
    assert {parameter.grad.dtype for parameter in own} == {torch.float32}


def test_parameters_are_put_back_after_an_error() -> None:
    """Whoever catches it goes on with the model that it had."""
    model = Twice()
    with pytest.raises(AssertionError):
        compute_in(model, torch.bfloat16)(torch.ones(1, 4))
    assert isinstance(model.first.weight, nn.Parameter)
