"""Optimizers by hand, with one wrong rule each, and engines that clip in ways of their own.

They stand in a module of their own so that ranks can import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, workloads
from pytest_precision.layouts import compute_in, resident
from pytest_precision.workloads import rules
from pytest_precision.workloads.recipe import warmup_cosine

MOMENTUM = {"momentum": 0.9, "dampening": 0.25}

ROUNDED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class WithL2(workloads.mlp):
    """A workload whose weight decay is a part of the gradient."""

    optimizer_rule = rules.Adam()


class Unclipped(workloads.mlp):
    """A workload whose gradients are below the limit."""

    max_norm = 100.0


class Faint(workloads.mlp):
    """A workload with gradients so small that what torch adds to their norm counts."""

    max_norm = 1e-5

    def loss(self, model: torch.nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        total, tokens = super().loss(model, microbatch)
        return total * 1e-3, tokens


class WithSgd(workloads.mlp):
    """A workload whose optimizer is SGD, by default with `MOMENTUM`."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.optimizer_rule = rules.SGD(**(options or MOMENTUM))


class Adam(torch.optim.Optimizer):
    """AdamW in the dtype of its parameters, but for what `wrong` names, in all groups or in one."""

    only: int | None = None

    def __init__(self, groups: Any, wrong: str) -> None:
        self.wrong = wrong
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        wrong = self.wrong
        for number, group in enumerate(self.param_groups):
            self.wrong = wrong if self.only in (None, number) else ""
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, self._rate(number), group)
        self.wrong = wrong

    def _rate(self, number: int) -> float:
        other = (number + 1) % len(self.param_groups) if self.wrong == "other group" else number
        return float(self.param_groups[other]["lr"])

    def _update(self, weight: Tensor, lr: float, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(weight) for _ in "mv")
        made = int(state["step"])
        other = max(0, made + {"next rate": 1, "last rate": -1}.get(self.wrong, 0))
        lr *= warmup_cosine(other) / warmup_cosine(made)
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
        dtype, _, which = self.wrong.partition(" ")
        for name, moment in (("m", m), ("v", v)):
            if dtype in ROUNDED and which == name:
                moment.copy_(moment.to(ROUNDED[dtype]))
        first, second = 1 - 0.9**step, 1 - 0.999**step
        if self.wrong == "uncorrected":
            first = second = 1.0
        eps = group["eps"]
        root = (
            (v / second + eps).sqrt() if self.wrong == "eps" else v.sqrt() / math.sqrt(second) + eps
        )
        weight.sub_(m / root * (lr / first))
        if dtype in ROUNDED and which == "w":
            weight.copy_(weight.to(ROUNDED[dtype]))


class SGD(torch.optim.Optimizer):
    """SGD in the dtype of its parameters, but for what `wrong` names, in all groups or in one."""

    only: int | None = None

    def __init__(self, groups: Any, wrong: str, options: dict[str, Any]) -> None:
        self.wrong = wrong
        plain = {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False}
        super().__init__(groups, {**plain, "weight_decay": 0.0, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        wrong = self.wrong
        for number, group in enumerate(self.param_groups):
            self.wrong = wrong if self.only in (None, number) else ""
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        self.wrong = wrong

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        lr, decay, momentum = float(group["lr"]), group["weight_decay"], group["momentum"]
        grad, state = weight.grad, self.state[weight]
        if self.wrong == "decoupled":
            weight.mul_(1 - lr * decay)
        elif self.wrong != "no decay":
            grad = grad.add(weight, alpha=decay)
        rest = 1.0 if self.wrong == "undampened" else 1 - group["dampening"]
        within = lr if self.wrong == "rate within" else 1.0
        if not momentum:
            weight.sub_(grad, alpha=lr)
            return
        if not state:
            first = rest if self.wrong == "first dampened" else 1.0
            state["momentum_buffer"] = grad * (within * first)
        else:
            state["momentum_buffer"].mul_(momentum).add_(grad, alpha=rest * within)
        buffer = state["momentum_buffer"]
        if self.wrong == "bf16 buffer":
            buffer.copy_(buffer.bfloat16())
        nesterov = group["nesterov"] != (self.wrong == "other momentum")
        move = grad.add(buffer, alpha=momentum) if nesterov else buffer
        weight.sub_(move, alpha=1.0 if self.wrong == "rate within" else lr)


def here(workload: Workload, cell: Cell, *, wrong: str) -> Engine:
    model = workload.model(cell)
    return Engine(workload, cell, model, Adam(workload.groups(model), wrong))


def there(workload: Workload, cell: Cell, *, wrong: str) -> Engine:
    """The same defect on the other side, as a shared helper has it."""
    return here(workload, cell, wrong=wrong)


def sgd_here(workload: Workload, cell: Cell, *, wrong: str, **options: Any) -> Engine:
    model = workload.model(cell)
    return Engine(workload, cell, model, SGD(workload.groups(model), wrong, options))


def torch_sgd(workload: Workload, cell: Cell, **options: Any) -> Engine:
    """Torch's own; for a workload of another rule it is another kind of optimizer."""
    model, compute = resident(workload.model(cell), cell)
    optimizer = torch.optim.SGD(workload.groups(model), **options)
    return Engine(workload, cell, model, optimizer, forward_model=compute_in(model, compute))


def torch_adam(workload: Workload, cell: Cell) -> Engine:
    """Torch's own, whose weight decay is L2 regularisation."""
    model = workload.model(cell)
    return Engine(workload, cell, model, torch.optim.Adam(workload.groups(model)))


def divided(parameters: list[Tensor], limit: float, norm: Tensor) -> None:
    """Divide by the norm over its limit, without adding anything to it; that is right, too."""
    if norm > limit:
        for parameter in parameters:
            parameter.grad.div_(norm / limit)


def unclipped(parameters: list[Tensor], limit: float, norm: Tensor) -> None:
    """Leave them as they are."""


def unlimited(parameters: list[Tensor], limit: float, norm: Tensor) -> None:
    """Scale them to the limit, whichever side of it they are on."""
    for parameter in parameters:
        parameter.grad.mul_(limit / (norm + 1e-6))


def one_by_one(parameters: list[Tensor], limit: float, norm: Tensor) -> None:
    """Clip each by a norm of its own."""
    for parameter in parameters:
        torch.nn.utils.clip_grad_norm_(parameter, limit)


CLIPS = {one.__name__: one for one in (divided, unclipped, unlimited, one_by_one)}


class Clipped(Engine):
    """Clips by a function of the parameters, the limit and the right norm."""

    how: Callable[[list[Tensor], float, Tensor], None]

    def clip_grads(self) -> None:
        limit, self.max_norm = self.max_norm, None
        super().clip_grads()
        self.max_norm = limit
        owners = [parameter for _, parameter in self.masters() if parameter.grad is not None]
        self.how(owners, limit, self.grad_norm)


def clipped(workload: Workload, cell: Cell, *, how: str) -> Engine:
    model = workload.model(cell)
    engine = Clipped(workload, cell, model, torch.optim.AdamW(workload.groups(model)))
    engine.how = CLIPS[how]
    return engine


class LAMB(torch.optim.Optimizer):
    """Keeps Adam's moments, and moves by another rule: its rate is half of the group's."""

    def __init__(self, groups: Any, **options: Any) -> None:
        plain = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
        super().__init__(groups, {**plain, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(weight),) * 2
                    state["exp_avg"].lerp_(weight.grad, 0.1)
                    weight.sub_(state["exp_avg"], alpha=group["lr"] / 2)


class AdamW(LAMB):
    """Is named as a known one, and takes options."""


class Derived(torch.optim.AdamW):
    """Takes the options of AdamW, and makes its step twice."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step()


class Cautious(Derived):
    """Takes an option that AdamW does not have."""

    def __init__(self, groups: Any, caution: float = 0.5) -> None:
        self.caution = caution
        super().__init__(groups)


def other(
    workload: Workload, cell: Cell, *, kind: type[torch.optim.Optimizer], **options: Any
) -> Engine:
    """An engine with another optimizer."""
    model = workload.model(cell)
    return Engine(workload, cell, model, kind(workload.groups(model), **options))


class OtherNumbers(torch.optim.AdamW):
    """AdamW that steps with other numbers than its groups have."""

    only: int | None = None

    def step(self, closure: Any = None) -> Any:
        kept = [dict(group) for group in self.param_groups]
        for number, group in enumerate(self.param_groups):
            if self.only in (None, number):
                group.update(self.changes | {"lr": group["lr"] * self.changes.get("lr", 1.0)})
        super().step(closure)
        for group, old in zip(self.param_groups, kept, strict=True):
            group.update(old)


def adam_of(wrong: str, only: int | None) -> Callable[..., Engine]:
    """A layout with a wrong AdamW."""

    def made(workload: Workload, cell: Cell) -> Engine:
        model = workload.model(cell)
        optimizer = Adam(workload.groups(model), wrong)
        optimizer.only = only
        return Engine(workload, cell, model, optimizer)

    return made


def sgd_of(wrong: str, only: int | None) -> Callable[..., Engine]:
    """A layout with a wrong SGD."""

    def made(workload: Workload, cell: Cell) -> Engine:
        model = workload.model(cell)
        optimizer = SGD(workload.groups(model), wrong, MOMENTUM)
        optimizer.only = only
        return Engine(workload, cell, model, optimizer)

    return made


def numbers_of(changes: dict[str, Any], only: int | None) -> Callable[..., Engine]:
    """A layout with an AdamW that has other numbers; that of `lr` is a factor."""

    def made(workload: Workload, cell: Cell) -> Engine:
        model = workload.model(cell)
        optimizer = OtherNumbers(workload.groups(model))
        optimizer.changes, optimizer.only = changes, only
        return Engine(workload, cell, model, optimizer)

    return made
