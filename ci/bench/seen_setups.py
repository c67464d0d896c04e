"""Set-ups of which every leaf is changed, or kept from advancing, by `seen.py`: layouts, loops."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import lr_scheduler, swa_utils

from pytest_precision import layouts, workloads
from pytest_precision.matrix.cell import Cell

Roots = dict[str, Any]
Between = Callable[[int, Roots], None]
"""Is given the number of steps that are over, and the roots, before the first step and after each.
"""

CHANGED = 2
"""The step after which a leaf is changed."""


@dataclass
class Parts:
    """What a loop is made of.

    Attributes:
        model: called with the inputs.
        optimizers: step in this order.
        schedulers: step after them; a plateau is given the loss.
        scaler: of the loss, or None.
        after: called at the end of each step.
        beside: further roots by name.
        closure: whether the optimizers take one.
    """

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Any] = field(default_factory=list)
    scaler: Any = None
    after: Callable[[int], None] = lambda step: None
    beside: Roots = field(default_factory=dict)
    closure: bool = False

    def roots(self) -> Roots:
        """Return everything that the loop reaches."""
        named = {f"optimizer{n}": optimizer for n, optimizer in enumerate(self.optimizers)}
        named |= {f"scheduler{n}": scheduler for n, scheduler in enumerate(self.schedulers)}
        return {"model": self.model, **named, "scaler": self.scaler, **self.beside}


def net(*between: nn.Module) -> nn.Module:
    """Make a small model with some modules in its middle."""
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *between, nn.Linear(5, 2))


def loop(
    cell: Any,
    record: Callable[..., Any],
    make: Callable[[], Parts],
    between: Between | None = None,
    look: Callable[..., None] | None = None,
    steps: int = 0,
) -> None:
    """Train what `make` makes, and let something be done to it between steps.

    Args:
        cell: says how many steps there are, unless `steps` does.
        record: opens the block.
        make: makes the parts.
        between: is called before the first step and after each.
        look: is given step, loss and parts after each step, before `between` is called.
        steps: number of them.
    """
    parts = make()
    total = steps or cell.operations.count("train")
    with record() if record is not None else nullcontext():
        if between is not None:
            between(0, parts.roots())
        for step in range(1, total + 1):
            inputs = torch.randn(4, 3)
            for optimizer in parts.optimizers:
                optimizer.zero_grad()
            loss = update(parts, inputs)
            for scheduler in parts.schedulers:
                plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(float(loss)) if plateau else scheduler.step()
            parts.after(step)
            if look is not None:
                look(step, loss, parts)
            if between is not None:
                between(step, parts.roots())


def update(parts: Parts, inputs: Tensor) -> Tensor:
    """Make one step; return the loss."""

    def compute() -> Tensor:
        loss = parts.model(inputs).square().mean()
        scaled = loss if parts.scaler is None else parts.scaler.scale(loss)
        scaled.backward()
        return loss

    def closure() -> Tensor:
        parts.optimizers[0].zero_grad()
        return compute()

    if parts.closure:
        return parts.optimizers[0].step(closure)
    loss = compute()
    for optimizer in parts.optimizers:
        if parts.scaler is None:
            optimizer.step()
        else:
            parts.scaler.step(optimizer)
    if parts.scaler is not None:
        parts.scaler.update()
    return loss.detach()


def simple(kind: Any, *between: Callable[[], nn.Module], **options: Any) -> Parts:
    """Train with one optimizer."""
    model = net(*(make() for make in between))
    return Parts(model, [kind(model.parameters(), **options)])


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.5)


def scheduled(make: Callable[[Any], Any]) -> Parts:
    """Train with a scheduler."""
    parts = simple(SGD)
    parts.schedulers.append(make(parts.optimizers[0]))
    return parts


def scaled() -> Parts:
    """Train with a scale on the loss."""
    parts = simple(SGD)
    parts.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    return parts


def averaged(swa: bool = False) -> Parts:
    """Keep torch's average of the weights."""
    parts = simple(SGD)
    options = {} if swa else {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)}
    average = swa_utils.AveragedModel(parts.model, **options)
    parts.after = lambda step: average.update_parameters(parts.model)
    parts.beside["average"] = average
    if swa:
        parts.schedulers.append(swa_utils.SWALR(parts.optimizers[0], swa_lr=0.05, anneal_epochs=3))
    return parts


def own_average() -> Parts:
    """Keep an average of one's own in a copy of the model."""
    parts = simple(SGD)
    average = copy.deepcopy(parts.model)

    def after(step: int) -> None:
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), parts.model.parameters(), strict=True):
                mean.lerp_(weight, 0.1)

    parts.after, parts.beside["average"] = after, average
    return parts


class Buffers(nn.Module):
    """Reads a buffer that is no plain tensor of floats."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "complex":
            buffer = torch.polar(torch.ones(5), torch.arange(5.0) * 0.3)
            self.register_buffer("held", buffer)
            self.register_buffer("conjugate", buffer.conj())
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says that it will remove them
                buffer = torch.quantize_per_tensor(torch.arange(5.0), 0.1, 0, torch.qint8)
            self.register_buffer("held", buffer)
        self.kind = kind

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply by what the buffer holds."""
        if self.kind == "complex":
            return inputs * self.held.real + self.conjugate.imag
        return inputs * self.held.dequantize()


class Extra(nn.Module):
    """Saves a scale that is no tensor, and reads a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.5
        self.shifts = [0.1, 0.2]
        self.options = {"power": 2}

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute with all of them."""
        return (inputs * self.scale + sum(self.shifts)) ** self.options["power"]

    def get_extra_state(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint."""
        self.scale = state["scale"]


class Counting(nn.Module):
    """Counts its calls in Python, and draws from the generators of Python and numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute with both; the count is read from the hundredth call on."""
        self.calls += 1
        return inputs * (1 + self.calls // 100) + 0.1 * random.random() + 0.1 * np.random.rand()


def two_optimizers() -> Parts:
    """Let each half of a model have an optimizer."""
    model = net()
    adamw = torch.optim.AdamW(model[0].parameters(), lr=0.01)
    return Parts(model, [adamw, SGD(model[-1].parameters())])


class Lora(nn.Module):
    """Adds a product of two small matrices to a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 5).requires_grad_(False)
        self.down = nn.Linear(5, 2, bias=False)
        self.up = nn.Linear(2, 5, bias=False)
        self.scaling = 0.5

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute both."""
        return self.base(inputs) + self.up(self.down(inputs)) * self.scaling


class Tied(nn.Module):
    """Uses one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs."""
        return self.last(torch.tanh(self.first(inputs)))


def tied() -> Parts:
    """Train a model with a weight that two modules share."""
    model = Tied()
    return Parts(model, [SGD(model.parameters())])


def trained_alone() -> Parts:
    """Train what is added to a frozen model."""
    model = net(Lora())
    return Parts(model, [SGD([p for p in model.parameters() if p.requires_grad])])


def sharded() -> Parts:
    """Shard a model."""
    model = fully_shard(net(), mesh=init_device_mesh("cpu", (1,)))
    return Parts(model, [torch.optim.AdamW(model.parameters(), lr=0.01)])


def muon() -> Parts:
    """Orthogonalise the updates of matrices, and update the rest otherwise."""
    model = net(nn.Linear(5, 5, bias=False))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    return Parts(model, [torch.optim.Muon(matrices, lr=0.02), SGD(rest)])


LOOPS: dict[str, Callable[[], Parts]] = {
    "LBFGS": lambda: Parts(
        (m := net()), [torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=2)], closure=True
    ),
    "SGD with momentum": partial(simple, SGD),
    "AMSGrad": partial(simple, torch.optim.Adam, lr=0.01, amsgrad=True),
    "Adafactor": partial(simple, torch.optim.Adafactor, lr=0.01),
    "Muon": muon,
    "GradScaler": scaled,
    "AveragedModel": averaged,
    "average of one's own": own_average,
    "SWA": partial(averaged, swa=True),
    "StepLR": partial(scheduled, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=30)),
    "OneCycle": partial(
        scheduled, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=10)
    ),
    "ReduceLROnPlateau": partial(
        scheduled,
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
    ),
    "dropout": partial(simple, SGD, lambda: nn.Dropout(0.25)),
    "BatchNorm": partial(simple, SGD, lambda: nn.BatchNorm1d(5)),
    "quantized buffers": partial(simple, SGD, lambda: Buffers("quantized")),
    "complex buffers": partial(simple, SGD, lambda: Buffers("complex")),
    "extra state": partial(simple, SGD, Extra),
    "counter and host generators": partial(simple, SGD, Counting),
    "two optimizers": two_optimizers,
    "LoRA": trained_alone,
    "tied weights": tied,
    "fully_shard": sharded,
}
"""Name to what a loop is made of."""

BF16 = {"precision": "bf16", "primary_weight": "bf16"}
QUANTIZED = {"precision": "mxfp8", "primary_weight": "quantized"}

LAYOUTS: dict[str, tuple[Any, Any, Cell]] = {
    "layouts.adamw": (layouts.adamw, workloads.mlp, Cell()),
    "layouts.ddp": (layouts.ddp, workloads.mlp, Cell()),
    "layouts.fsdp2": (layouts.fsdp2, workloads.mlp, Cell()),
    "layouts.master_adamw": (layouts.master_adamw, workloads.mlp, Cell(**BF16)),
    "layouts.master_adamw, fp16": (
        layouts.master_adamw,
        workloads.mlp,
        Cell("fp16", primary_weight="fp16"),
    ),
    "layouts.fused_adam": (layouts.fused_adam, workloads.mlp, Cell(**BF16)),
    "layouts.any_precision_adamw": (layouts.any_precision_adamw, workloads.mlp, Cell(**BF16)),
    "layouts.distributed_optimizer": (layouts.distributed_optimizer, workloads.mlp, Cell(**BF16)),
    "layouts.autocast": (layouts.autocast, workloads.mlp, Cell("bf16", "fp32")),
    "layouts.discrete_experts": (layouts.discrete_experts, workloads.moe, Cell(**QUANTIZED)),
    "layouts.grouped_experts": (layouts.grouped_experts, workloads.moe, Cell(**QUANTIZED)),
}
"""Name to a layout, its workload and its cell."""


def state_of(parts: Parts) -> Iterator[Any]:
    """Yield what a checkpoint of a loop holds."""
    yield parts.model.state_dict()
    for stepper in (*parts.optimizers, *parts.schedulers):
        yield stepper.state_dict()
    if parts.scaler is not None:
        yield parts.scaler.state_dict()
    for average in parts.beside.values():
        yield average.state_dict()
