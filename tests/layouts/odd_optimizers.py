"""Optimizers that keep what no other one does, in an engine and in a script.

They stand in a module of their own so that ranks can import it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload, script, workloads
from pytest_precision.recorders.scripts.script_recorder import Record

GROUPS: dict[str, dict[str, Any]] = {
    "no step yet": {"step": None},
    "a step in words": {"step": "first"},
    "three betas": {"betas": (0.9, 0.99, 0.999)},
    "no betas": {"beta1": 0.9, "beta2": 0.99},
    "betas in words": {"betas": ("low", "high")},
    "two eps": {"eps": (None, 1e-3)},
    "decay in words": {"weight_decay": "none"},
}
"""What stands in the groups of an optimizer in place of Adam's numbers."""

STATE: dict[str, Any] = {
    "deque": deque([torch.ones(2)], maxlen=3),
    "text": "warming up",
    "generator": random.Random(0),
    "huge": 2**70,
    "sparse": torch.eye(2).to_sparse(),
    "abstract": torch.empty(2, device="meta"),
}
"""What stands in the state of a parameter beside its moments."""

WITHOUT = "lr", "weight_decay", "eps"
"""What an optimizer may lack that Adam has."""


class AdamW(torch.optim.Optimizer):
    """Is named as one with a known rule, and keeps something odd."""

    def __init__(self, parameters: Any, odd: str) -> None:
        plain = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        own = GROUPS.get(odd, {})
        if odd == "no betas":
            del plain["betas"]
        super().__init__(parameters, {**plain, **own})
        for group in self.param_groups:
            group.update(own)
            if odd.startswith("no ") and odd[3:] in WITHOUT:
                del group[odd[3:]]
        self.odd = odd

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            lr, decay = group.get("lr", 1e-3), group.get("weight_decay")
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, lr, decay if isinstance(decay, float) else 0.0)

    def _update(self, weight: Tensor, lr: float, decay: float) -> None:
        state = self.state[weight]
        if not state:
            state["made"] = 0
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(weight) for _ in "mv")
        state |= {key: value for key, value in STATE.items() if key == self.odd}
        state["made"] += 1
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(weight.grad, 0.1)
        v.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
        first, second = 1 - 0.9 ** state["made"], 1 - 0.999 ** state["made"]
        weight.mul_(1 - lr * decay).addcdiv_(m, (v / second).sqrt_().add_(1e-8), value=-lr / first)


class Constant(workloads.mlp):
    """Has no scheduler, since some optimizers have no rate."""

    def scheduler(self, optimizer: torch.optim.Optimizer) -> None:
        return None


def engine(workload: Workload, cell: Cell, odd: str) -> Engine:
    model = workload.model(cell)
    return Engine(workload, cell, model, AdamW(workload.groups(model), odd))


def again(workload: Workload, cell: Cell, odd: str) -> Engine:
    """The same under another name, for the other side of a check."""
    return engine(workload, cell, odd)


@script
def loop(cell: Cell, record: Record, odd: str, again: bool = False) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = AdamW(model.parameters(), odd)
    with record():
        for number in range(9):
            model(torch.full((2, 3), float(number + 1))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
