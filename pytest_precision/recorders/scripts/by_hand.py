"""By hand: detect a loop that changes weights without a `torch.optim.Optimizer`, and refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got

LOOKED_AT = 4
"""How many tensors are looked at."""

SEARCHED_NODES = 10_000
"""How many nodes of a graph are searched for them."""

LARGEST_LEAF = 1 << 16
"""Largest size of one that is looked at."""


class ByHand:
    """Detects loops that update weights without an optimizer: compares weights at each backward.

    Args:
        steps: number of train steps that the loop is to make.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._before: list[Tensor] = []
        self._moves = 0

    def backward(self, loss: Tensor, backwards: int) -> None:
        """Raise if the loss's weights moved too often between backwards, without an optimizer.

        Raises:
            RuntimeError: it has moved more often than the loop has steps to make.
        """
        now = [leaf.detach().clone() for leaf in _leaves(loss)]
        pairs = zip(self._before, now, strict=False)
        self._moves += any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs)
        self._before = now
        if self._moves > self._steps:
            raise RuntimeError(
                expected_but_got(
                    "steps of an optimizer",
                    f"{backwards} backwards, between which weights moved {self._moves} times, and "
                    "no step",
                    "no torch.optim.Optimizer stepped; is the update by hand? Put it into the "
                    "step() of a torch.optim.Optimizer",
                )
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield up to four small weights that a loss depends on, from its autograd graph."""
    nodes = [loss.grad_fn]
    seen = set[Any]()
    found = 0
    while nodes and found < LOOKED_AT and len(seen) < SEARCHED_NODES:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf: Any = getattr(node, "variable", None)
        if (
            type(leaf) in (Tensor, nn.Parameter)
            and 0 < leaf.numel() <= LARGEST_LEAF
            and _held(leaf)
        ):
            found += 1
            yield leaf
        nodes.extend(following for following, _ in node.next_functions)


def _held(leaf: Tensor) -> bool:
    """Return whether a tensor's storage is allocated; FSDP frees that of gathered weights.

    Reading it would end the process.
    """
    if leaf.layout != torch.strided:
        return False
    last = sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True))
    end = (leaf.storage_offset() + last + 1) * leaf.element_size()
    return leaf.untyped_storage().nbytes() >= end
