"""Attributes: what modules save beside parameters and buffers."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor, nn

from pytest_precision.engine.attributes import extra_state


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
