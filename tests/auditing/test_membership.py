"""Whose parameters the optimizer holds: the model's own, each once, or masters of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_precision import NoSetupError, audit

Rules = Callable[..., dict[str, str]]


def test_another_models_parameters(model: nn.Module) -> None:
    """None of them moves what is trained."""
    optimizer = torch.optim.AdamW(nn.Linear(24, 32).parameters())
    (found,) = audit(model, optimizer).at_least("warning")
    assert (found.rule, found.severity) == ("foreign-parameters", "error")
    assert found.names == ("group 0, tensor 0: (32, 24)", "group 0, tensor 1: (32,)")


def test_a_copy_of_the_model(model: nn.Module) -> None:
    """It has the same values, so far; nothing copies it back."""
    optimizer = torch.optim.AdamW(copy.deepcopy(model).parameters())
    (found,) = audit(model, optimizer).at_least("warning")
    assert "copies of the model's parameters" in found.reason


def test_parameters_in_no_group(model: nn.Module) -> None:
    """They never move; frozen ones need not."""
    optimizer = torch.optim.AdamW(model[:2].parameters())
    (found,) = audit(model, optimizer).at_least("warning")
    assert (found.rule, found.names) == ("in-no-group", ("2.weight", "2.bias"))
    model[2].requires_grad_(False)
    assert audit(model, optimizer).at_least("warning") == []


def test_two_optimizers_share_the_model(model: nn.Module, rules: Rules) -> None:
    """Each has its part, unless one parameter is in both."""
    first, second = (torch.optim.AdamW(part.parameters()) for part in (model[:1], model[1:]))
    assert rules(model, [first, second]) == {}
    second.add_param_group({"params": [model[0].bias]})
    assert rules(model, {"one": first, "other": second}) == {"in-two-groups": "error"}


def test_wrappers_have_no_part_in_names(model: nn.Module) -> None:
    """Compiled and checkpointed modules have the parameters of what they wrap."""
    compiled = torch.compile(model)
    rows = audit(compiled, torch.optim.AdamW(model.parameters())).rows
    assert [row.name for row in rows] == [name for name, _ in model.named_parameters()]


def test_an_optimizer_of_frozen_parameters(model: nn.Module, rules: Rules) -> None:
    """It was made before they were thawed."""
    model.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW([{"params": trained}], lr=1e-3)
    assert rules(model, optimizer) == {"nothing-to-train": "error"}
    assert rules(model, torch.optim.AdamW(model.parameters())) == {"nothing-to-train": "error"}
    model.requires_grad_(True)
    assert rules(model, torch.optim.AdamW(model.parameters())) == {}


def test_a_refusal_has_no_contents(model: nn.Module) -> None:
    """Of a dict of tensors, the first one's shape."""
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(NoSetupError, match=r"but got average \(Tensor of shape \(40, 50\)\);"):
        audit(model, optimizer, {"ema": {"average": torch.zeros(40, 50)}})
