"""What one step on a copy shows: which options an optimizer reads, and how it rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import audit

Rules = Callable[..., dict[str, str]]


class Signs(torch.optim.Optimizer):
    """Moves each weight by its rate, and rounds to bf16 by itself."""

    def __init__(self, params: Any, lr: float, *, at_random: bool, decay_first: bool) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.1})
        self.at_random = at_random
        self.decay_first = decay_first

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            decay = 1 - group["lr"] * group["weight_decay"]
            for parameter in group["params"]:
                self.state[parameter].setdefault("count", 0)
                if self.decay_first:
                    parameter.mul_(decay)
                exact = parameter.float() * (1.0 if self.decay_first else decay)
                exact -= group["lr"] * parameter.grad.float().sign()
                parameter.copy_(self.rounded(exact))

    def rounded(self, exact: Tensor) -> Tensor:
        if not self.at_random:
            return exact.bfloat16()
        bits = exact.view(torch.int32) + torch.randint(0, 1 << 16, exact.shape).int()
        return (bits & -(1 << 16)).view(torch.float32).bfloat16()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"at_random": True, "decay_first": False}, {}),
        ({"at_random": True, "decay_first": True}, {"decay-lost": "warning"}),
        ({"at_random": False, "decay_first": False}, {"update-unknown": "warning"}),
    ],
    ids=["all at random", "decay to nearest", "to nearest"],
)
def test_how_an_optimizer_of_ones_own_rounds(
    model: nn.Module, rules: Rules, how: Any, expected: dict[str, str]
) -> None:
    """Random rounding loses no update, and only the decay that it is not used for."""
    model.bfloat16()
    assert rules(model, Signs(model.parameters(), 1e-5, **how)) == expected


def test_the_severity_follows_the_share(rules: Rules) -> None:
    """At a rate at which no update is lost, it is a warning."""
    layer = nn.Linear(64, 8).bfloat16()
    assert rules(layer, torch.optim.AdamW(layer.parameters(), lr=1e-2)) == {
        "update-below-fp32": "warning"
    }
    assert rules(layer, torch.optim.AdamW(layer.parameters(), lr=1e-5)) == {
        "update-below-fp32": "error"
    }


def test_an_option_is_ignored_unless_it_is_read(model: nn.Module) -> None:
    """By the optimizer, or by the scheduler that keeps it there; marks are for others."""
    marks = {"name": "all", "is_expert": True}
    group = {"params": [*model.parameters()], "wd": 0.0, "lr_scale": 0.5, **marks}
    optimizer = torch.optim.AdamW([group], weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10)
    ignored = audit(model, optimizer, scheduler).findings
    assert [finding.reason.split("=")[0] for finding in ignored] == [
        "group 0 says lr_scale",
        "group 0 says wd",
    ]


def test_a_trial_changes_nothing(model: nn.Module) -> None:
    """Neither weights, nor state, nor the scheduler's count, nor what is drawn after it."""
    model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("the optimizer stepped"))
    before = [weight.clone() for weight in model.parameters()], torch.get_rng_state()
    audit(model, optimizer, scheduler)
    assert all(map(torch.equal, before[0], model.parameters()))
    assert torch.equal(before[1], torch.get_rng_state())
    assert (dict(optimizer.state), scheduler.last_epoch) == ({}, 0)
