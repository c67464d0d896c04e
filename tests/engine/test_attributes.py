"""Attributes: what modules save beside parameters and buffers."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision.engine.attributes import (
    attributes_of_optimizer,
    extra_state,
    optimizers_in,
    state_by_name,
)


class Pickling(nn.Module):
    """Saves a number in bytes, as Transformer Engine's modules save theirs."""

    def __init__(self, protocol: int) -> None:
        super().__init__()
        self.protocol = protocol

    def get_extra_state(self) -> Tensor:
        """Return what a checkpoint keeps; equal numbers have unequal bytes."""
        made = bytearray(pickle.dumps({"count": 3}, self.protocol))
        return torch.frombuffer(made, dtype=torch.uint8)


class Torn(nn.Module):
    """Saves bytes that nobody can read."""

    def get_extra_state(self) -> Tensor:
        """Return the beginning of a pickle."""
        return torch.tensor([0x80, 4, 1], dtype=torch.uint8)


def test_what_a_module_has_pickled_is_shown_as_the_objects_in_it() -> None:
    """Equal states are equal, though their bytes are not."""
    for protocol in (2, 4):
        (seen,) = extra_state([("counting", Pickling(protocol))])
        assert (seen.kind, seen.name) == ("attribute", "extra state.count of counting")
        assert seen.tensor.item() == 3


def test_bytes_that_cannot_be_taken_apart_are_shown_as_they_are() -> None:
    """They are compared all the same."""
    (seen,) = extra_state([("torn", Torn())])
    assert (seen.kind, seen.name) == ("attribute", "extra state of torn")
    assert seen.tensor.tolist() == [0x80, 4, 1]


class Counting(torch.optim.SGD):
    """Keeps a count in an attribute, and one in its state under a name."""

    def __init__(self, count: int) -> None:
        super().__init__([nn.Parameter(torch.ones(1))])
        self.count = count
        state: dict[Any, Any] = self.state
        state["seen"] = count


def test_each_of_several_optimizers_is_shown() -> None:
    """Under names of its own, also where all keep the same."""
    chained = SimpleNamespace(optimizers=[Counting(3), Counting(5)])
    parts = [*optimizers_in(chained)]
    held = dict(leaf for number, one in parts for leaf in attributes_of_optimizer(one, number))
    assert (held["count of Counting"], held["count of Counting 2"]) == (3, 5)
    seen = [each for number, one in parts for each in state_by_name(one, number)]
    assert {each.name: each.tensor.item() for each in seen} == {
        "seen of the optimizer": 3,
        "seen of the optimizer 2": 5,
    }
