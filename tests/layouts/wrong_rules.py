"""Adam by hand, with one wrong rule each, in a module of its own so that ranks can import it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.engine import Engine
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload


class Adam(torch.optim.Optimizer):
    """AdamW in the dtype of its parameters, but for what `wrong` names."""

    def __init__(self, groups: Any, wrong: str) -> None:
        self.wrong = wrong
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, self._rate(number), group)

    def _rate(self, number: int) -> float:
        other = (number + 1) % len(self.param_groups) if self.wrong == "other group" else number
        return float(self.param_groups[other]["lr"])

    def _update(self, weight: Tensor, lr: float, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(weight) for _ in "mv")
        state["step"] += 1
        late = {"step ahead": 1, "step behind": -1}.get(self.wrong, 0)
        step = max(1, int(state["step"]) + late)
        decay, grad = group["weight_decay"], weight.grad
        if self.wrong == "l2":
            grad = grad.add(weight, alpha=decay)
        elif self.wrong != "no decay":
            weight.mul_(1 - decay * (group["initial_lr"] if self.wrong == "full decay" else lr))
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(grad, 0.1)
        v.mul_(0.999).addcmul_(grad, grad, value=0.001)
        if self.wrong in ("bf16 v", "fp16 v"):
            v.copy_(v.to(torch.bfloat16 if self.wrong == "bf16 v" else torch.float16))
        first, second = 1 - 0.9**step, 1 - 0.999**step
        if self.wrong == "uncorrected":
            first = second = 1.0
        eps = group["eps"]
        root = (
            (v / second + eps).sqrt() if self.wrong == "eps" else v.sqrt() / math.sqrt(second) + eps
        )
        weight.sub_(m / root * (lr / first))
        if self.wrong == "bf16 w":
            weight.copy_(weight.bfloat16())


def here(workload: Workload, cell: Cell, *, wrong: str) -> Engine:
    model = workload.model(cell)
    return Engine(workload, cell, model, Adam(workload.groups(model), wrong))


def there(workload: Workload, cell: Cell, *, wrong: str) -> Engine:
    """The same defect on the other side, as a shared helper has it."""
    return here(workload, cell, wrong=wrong)


def sgd(workload: Workload, cell: Cell) -> Engine:
    """An optimizer of another kind than the rule, which keeps no state."""
    model = workload.model(cell)
    return Engine(workload, cell, model, torch.optim.SGD(workload.groups(model)))


def sgd_again(workload: Workload, cell: Cell) -> Engine:
    return sgd(workload, cell)


class HalfTheNorm(Engine):
    """A norm that leaves out gradients, as one of a single shard does."""

    def clip_grads(self) -> None:
        super().clip_grads()
        self.grad_norm = self.grad_norm / 2


def half_the_norm(workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    return HalfTheNorm(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def half_the_norm_again(workload: Workload, cell: Cell) -> Engine:
    return half_the_norm(workload, cell)
