"""A wrapper leaves no trace in names, whoever made it, and whether the model is named or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import unchanged
import wrapped
from checked import Recorded, named
from torch import nn

from pytest_precision.matrix.tensor_key import WRAPPER_NAMES
from pytest_precision.trace.reader import Trace

NAMES = sorted(name for name, _ in unchanged.Net().named_parameters())
BUFFERS = sorted(name for name, _ in unchanged.Net().named_buffers())
KINDS = ("used_param", "reduced_grad", "final_grad", "lr", "exp_avg", "master", "param")


def names(trace: Trace) -> dict[str, list[str]]:
    """Return kind to the names that were seen in both steps, without a task's own buffer."""
    for step in (1, 2):
        seen = {kind: sorted({*named(trace, kind, step)}) for kind in (*KINDS, "buffer", "flag")}
        seen["buffer"] = [name for name in seen["buffer"] if "seen" not in name]
        assert seen == dict.fromkeys(KINDS, NAMES) | {"buffer": BUFFERS, "flag": ["training"]}
    assert sorted({*named(trace, "param", 0)}) == NAMES
    assert named(trace, "flag", 0) == ["training"]
    return seen


def combinations() -> Iterator[Any]:
    """Yield all combinations: by day one of each wrapper, in which all other values take turns."""
    told = {"found": None, "told": lambda model: model, "by name": lambda model: {"": model}}
    ways = [*product(told, (False, True))]
    for number, wrap in enumerate(wrapped.WRAPPERS):
        for how, late in ways:
            marks = () if (how, late) == ways[number % len(ways)] else pytest.mark.nightly
            name = f"{wrap}-{how}-{'late' if late else 'early'}"
            yield pytest.param(wrap, late, told[how], id=name, marks=marks)


@pytest.mark.parametrize(("wrap", "late", "told"), combinations())
def test_a_wrapper_is_transparent(recorded: Recorded, wrap: str, late: bool, told: Any) -> None:
    """Names are those of the model, and what is in the wrapper beside it has its own."""
    assert names(recorded(wrapped.trained(wrapped.WRAPPERS[wrap], told=told, late=late)))


def test_a_module_without_tensors_before_the_model_changes_nothing(recorded: Recorded) -> None:
    """The model is what holds the parameters of the optimizer."""

    class Before(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.nothing, self.parts = nn.Identity(), {"model": model}

        def parameters(self, recurse: bool = True) -> Any:
            return self.parts["model"].parameters()

        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            return self.parts["model"].named_parameters(*args, **kwargs)

        def __call__(self, inputs: torch.Tensor) -> Any:
            return self.parts["model"](self.nothing(inputs))

    assert names(recorded(wrapped.trained(Before)))


def test_what_is_trained_is_the_model_though_something_else_is_called_first(
    recorded: Recorded,
) -> None:
    """A frozen encoder in front of it is another one, and its start is shown as well."""

    def encoded(cell, record):  # type: ignore[no-untyped-def]
        encoder, model = nn.Linear(7, 7).requires_grad_(False), unchanged.Net()
        optimizer = unchanged.adamw(model)
        with record():
            for inputs, _ in unchanged.batches():
                model(encoder(inputs)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    trace = recorded(encoded)
    assert sorted(named(trace, "exp_avg")) == NAMES
    for step in (0, 1, 2):
        others = ["model2.bias", "model2.weight"]
        assert sorted({*named(trace, "param", step)}) == sorted([*NAMES, *others])


def test_the_rest_of_a_wrapper_around_a_named_root_has_names_of_its_own(
    recorded: Recorded,
) -> None:
    """They cannot meet those of the root."""

    class Two(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model, self.head = model, nn.Linear(3, 3)

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.head(self.model(inputs))

    trace = recorded(wrapped.trained(Two, told=lambda model: model))
    own = ["model2.head.bias", "model2.head.weight"]
    assert sorted({*named(trace, "exp_avg")}) == sorted([*NAMES, *own])


class Scaled(nn.Module):
    """A module of a user's with a wrapper's name for its child, and a like-named weight beside it.

    Args:
        child: its name.
    """

    def __init__(self, child: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7))
        self.register_module(child, nn.Linear(7, 7))

    def forward(self, inputs: torch.Tensor) -> Any:
        (inner,) = self.children()
        return inner(inputs * self.weight)


@pytest.mark.parametrize("child", [*sorted(WRAPPER_NAMES), "module"])
def test_a_child_of_the_users_own_keeps_its_name(recorded: Recorded, child: str) -> None:
    """A wrapper's name is left out, unless two weights would have one name; so in a wrapper."""

    def script(cell, record):  # type: ignore[no-untyped-def]
        model = torch.compile(nn.Sequential(Scaled(child), nn.Linear(7, 2)), backend="eager")
        optimizer = unchanged.adamw(model)
        with record():
            for inputs, _ in unchanged.batches():
                model(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    own = {"0.weight", f"0.{child}.bias", f"0.{child}.weight", "1.bias", "1.weight"}
    assert {*named(recorded(script), "param", 1)} == own
