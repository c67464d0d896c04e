"""What nothing can be seen of is named, and ends no run."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from checked import Recorded, named, values
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.utils._python_dispatch import TorchDispatchMode

INPUTS = torch.linspace(-1, 1, 12).view(4, 3)


def transformed(model: nn.Module) -> None:
    """Compute the gradients of each sample by `torch.func`."""
    held = {name: own.detach() for name, own in model.named_parameters()}

    def loss(weights: Any, sample: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (sample,)).square().sum()

    for name, own in vmap(grad(loss), in_dims=(None, 0))(held, INPUTS).items():
        model.get_parameter(name).grad = own.mean(0)


def expanded(model: nn.Module) -> None:
    """Compute the gradients of each sample by expanded weights."""
    call_for_per_sample_grads(model)(INPUTS).square().sum().backward()
    for own in model.parameters():
        own.grad = own.grad_sample.mean(0)
        del own.grad_sample


class Capturing(TorchDispatchMode):
    """Refuses what no stream can do while it captures a CUDA graph: to give a value to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "_to_copy"):
            raise RuntimeError("operation not permitted when stream is capturing")
        return func(*args, **(kwargs or {}))


def replayed(model: nn.Module) -> None:
    """Capture a graph, once, which is replayed here: no module is called for that."""
    if not hasattr(model, "graph"):
        with (
            patch("torch.cuda.is_initialized", lambda: True),
            patch("torch.cuda.is_current_stream_capturing", lambda: True),
            Capturing(),
        ):
            model(INPUTS).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        model.graph = True
    outputs = nn.functional.linear(INPUTS, model.weight, model.bias)
    gradients = torch.autograd.grad(outputs.square().sum(), [*model.parameters()])
    for own, gradient in zip(model.parameters(), gradients, strict=True):
        own.grad = gradient


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (transformed, "inside a transform of torch.func"),
        (expanded, "weights that are not its own"),
        (replayed, "captured in a CUDA graph, whose replays call no hook"),
    ],
)
@pytest.mark.parametrize("told", [False, True])
def test_a_call_that_cannot_be_seen_is_named(
    recorded: Recorded, compute: Any, words: str, told: bool
) -> None:
    """The loop goes on, and gradients and state are observed."""

    def loop(cell: Any, record: Any) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with record(model if told else None):
            while True:
                compute(model)
                optimizer.step()
                optimizer.zero_grad()

    trace = recorded(loop)
    for kind in ("final_grad", "exp_avg", "param"):
        assert [named(trace, kind, step) for step in (1, 2)] == [["weight", "bias"]] * 2
    assert words in trace.header.unobservable["used_param in Linear"]


def by_functional_call(model: nn.Module) -> None:
    functional_call(model, {name: own * 2 for name, own in model.named_parameters()}, (INPUTS,))


def by_vmap(model: nn.Module) -> None:
    vmap(model)(INPUTS)


@pytest.mark.parametrize("first", [by_functional_call, by_vmap])
@pytest.mark.parametrize("trained", [0, 1], ids=["at the edge", "in a step"])
def test_a_call_that_can_be_seen_is_seen_after_one_that_cannot(
    recorded: Recorded, first: Any, trained: int
) -> None:
    """It shows what the model holds, and not what the first call had in its place."""

    def loop(cell: Any, record: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        other = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            while True:
                inputs = other(INPUTS) if trained else INPUTS
                first(model)
                model(inputs).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    trace = recorded(loop)
    own = ["0.weight", "0.bias", "1.weight", "1.bias"]
    for step in (1, 2):
        assert [name for name in named(trace, "used_param", step) if name in own] == own
    for name in own:
        before = values(trace, "param", name)[0]
        assert values(trace, "used_param", name)[0] == before
    assert "used_param in Sequential" in trace.header.unobservable


def test_a_compiled_call_that_cannot_be_seen_is_named(recorded: Recorded) -> None:
    """It is asked what others are asked, also where it was compiled before the recording."""

    def loop(cell: Any, record: Any) -> None:
        model = nn.Linear(3, 2)
        model.compile(backend="eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with record(model):
            while True:
                transformed(model)
                optimizer.step()

    trace = recorded(loop)
    assert [named(trace, "final_grad", step) for step in (1, 2)] == [["weight", "bias"]] * 2
    words = trace.header.unobservable["used_param in Linear"]
    assert words == "called inside a transform of torch.func"
