"""Refuse a loop that changes weights without a `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got
from pytest_precision.recorders.scripts.followed_gradients import has_plain_values

LOOKED_AT = 4
"""How many tensors are looked at."""

SEARCHED_NODES = 10_000
"""How many nodes of a graph are searched for them."""

LARGEST_LEAF = 1 << 16
"""Largest size of one that is looked at."""


class ByHand:
    """Detects loops that update weights without an optimizer, by comparing weights per backward.

    Args:
        steps: number of train steps that the loop is to make.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        # No list, which would be taken for the loop's own copy of its weights.
        self._before: tuple[Tensor, ...] = ()
        self._moves = 0

    def backward(self, loss: Tensor, backwards: int) -> None:
        """Raise if the loss's weights moved too often between backwards, without an optimizer.

        Raises:
            RuntimeError: it has moved more often than the loop has steps to make.
        """
        present_tensors = tuple(leaf.detach().clone() for leaf in _leaves(loss))
        pairs = zip(self._before, present_tensors, strict=False)
        self._moves += any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs)
        self._before = present_tensors
        if self._moves > self._steps:
            raise RuntimeError(
                expected_but_got(
                    "steps of a torch.optim.Optimizer",
                    f"{backwards} backwards, between which weights moved {self._moves} times, and "
                    "no step",
                    "put an update that is made by hand into the step() of a torch.optim.Optimizer",
                )
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield up to four small weights that a loss depends on, from its autograd graph."""
    nodes = [loss.grad_fn]
    visited = set[Any]()
    count = 0
    while nodes and count < LOOKED_AT and len(visited) < SEARCHED_NODES:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf: Any = getattr(node, "variable", None)
        # FSDP frees the memory of weights that it has gathered: reading it would end the process.
        if (
            has_plain_values(leaf)
            and 0 < leaf.numel() <= LARGEST_LEAF
            and leaf.untyped_storage().nbytes()
        ):
            count += 1
            yield leaf
        nodes.extend(following for following, _ in node.next_functions)
