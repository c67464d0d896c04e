"""A training loop that does what makes logging hard, and has one wrong line in the end."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

TRICK, WRONG = sys.argv[1], sys.argv[2] == "wrong"

torch.manual_seed(1)


class Damping(nn.Module):
    """A part of the model that is wrong in one step."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if WRONG and step == 1 and TRICK.startswith("inside "):
            return values * 0.75  # inside
        return values


class ByLists(torch.optim.Optimizer):
    """An optimizer that updates all weights in one operation, and too far in one step."""

    def step(self, closure: Any = None) -> None:
        updated = [one for group in self.param_groups for one in group["params"]]
        rate = 2e-2 if WRONG and step == 1 else 1e-2
        with torch.no_grad():
            torch._foreach_add_(updated, [one.grad for one in updated], alpha=-rate)  # lists


class Wrapper(torch.Tensor):
    """A tensor that holds another one, and is none of torch's own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made  # type: ignore[return-value]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = (one.inner if isinstance(one, cls) else one for one in args)
        return cls(func(*inner, **(kwargs or {})))


model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), Damping(), nn.Linear(32, 4))
optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if TRICK == "lists":
    optimizer = ByLists(model.parameters(), {"lr": 1e-2})


class Counting(TorchDispatchMode):
    """A mode of the user's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def forward(inputs: torch.Tensor) -> torch.Tensor:
    if TRICK in ("checkpoint", "inside checkpoint"):
        return checkpoint(model, inputs, use_reentrant=False)  # type: ignore[no-any-return]
    if TRICK == "mode":
        with Counting():
            return model(inputs)  # type: ignore[no-any-return]
    if TRICK == "func":
        weights = dict(model.named_parameters())
        return torch.func.functional_call(model, weights, (inputs,))  # type: ignore[no-any-return]
    if TRICK in ("autocast", "inside autocast"):
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs).float()  # type: ignore[no-any-return]
    return model(inputs)  # type: ignore[no-any-return]


def loss_of(weights: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    made = torch.func.functional_call(model, weights, (inputs,))
    return nn.functional.cross_entropy(made, torch.arange(8) % 4)


def by_transform(inputs: torch.Tensor) -> None:
    weights = {name: one.detach() for name, one in model.named_parameters()}
    for name, gradient in torch.func.grad(loss_of)(weights, inputs).items():
        model.get_parameter(name).grad = gradient


def wrapped(values: torch.Tensor) -> None:
    values.copy_((Wrapper(values) * 0.5).inner)  # wrapper


def thread(values: torch.Tensor) -> None:
    values.mul_(0.5)


def in_a_thread(values: torch.Tensor) -> None:
    other = threading.Thread(target=thread, args=(values,))
    other.start()
    other.join()


def of_a_deleted_file() -> Any:
    """Import a module whose file is gone when it runs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scaling.py")
        file.write_text("def scale(values):\n    values.mul_(0.5)\n")
        spec = importlib.util.spec_from_file_location("scaling", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.scale


@torch.library.custom_op("hostile::halved", mutates_args=("values",))
def halved(values: torch.Tensor) -> None:
    values.add_(1.0).sub_(1.0).mul_(0.5)


WAYS = {
    "deleted": of_a_deleted_file(),
    "custom": halved,
    "threaded": in_a_thread,
    "wrapper": wrapped,
}
scaled = "for parameter in parameters: parameter.grad.mul_(0.5)" + " " * 10_000
for step in range(3):
    optimizer.zero_grad()
    inputs = torch.ones(8, 16) * (step + 1)
    if TRICK == "thread":
        in_a_thread(inputs)
    if TRICK == "inside grad":
        by_transform(inputs)
    else:
        nn.functional.cross_entropy(forward(inputs), torch.arange(8) % 4).backward()
    if WRONG and step == 1 and TRICK == "exec":
        exec(scaled, {"parameters": [*model.parameters()]})
    elif WRONG and step == 1 and TRICK in WAYS:
        WAYS[TRICK](model[0].weight.grad)  # way
    elif WRONG and step == 1 and TRICK != "lists" and "inside" not in TRICK:
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)  # wrong
    optimizer.step()
