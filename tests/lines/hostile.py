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
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


class Counting(TorchDispatchMode):
    """A mode of the user's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def forward(inputs: torch.Tensor) -> torch.Tensor:
    if TRICK == "checkpoint":
        return checkpoint(model, inputs, use_reentrant=False)  # type: ignore[no-any-return]
    if TRICK == "mode":
        with Counting():
            return model(inputs)  # type: ignore[no-any-return]
    if TRICK == "func":
        weights = dict(model.named_parameters())
        return torch.func.functional_call(model, weights, (inputs,))  # type: ignore[no-any-return]
    if TRICK == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return model(inputs).float()  # type: ignore[no-any-return]
    return model(inputs)  # type: ignore[no-any-return]


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


WAYS = {"deleted": of_a_deleted_file(), "custom": halved, "threaded": in_a_thread}
scaled = "for parameter in parameters: parameter.grad.mul_(0.5)" + " " * 10_000
for step in range(3):
    optimizer.zero_grad()
    inputs = torch.ones(8, 16) * (step + 1)
    if TRICK == "thread":
        in_a_thread(inputs)
    nn.functional.cross_entropy(forward(inputs), torch.arange(8) % 4).backward()
    if WRONG and step == 1 and TRICK == "exec":
        exec(scaled, {"parameters": [*model.parameters()]})
    elif WRONG and step == 1 and TRICK in WAYS:
        WAYS[TRICK](model[0].weight.grad)  # way
    elif WRONG and step == 1:
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)  # wrong
    optimizer.step()
