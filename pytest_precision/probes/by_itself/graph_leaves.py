"""Read from the graph of a loss which weights it was computed from, and by which first nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

MOST_NODES = 50_000
"""Nodes of one graph that are visited."""


def nodes_on_leaves(loss: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Yield (node, leaf) for each node of a loss's graph that reads a leaf which has a gradient."""
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    visited = {*waiting}
    while waiting and len(visited) < MOST_NODES:
        node = waiting.pop()
        for inner, _ in node.next_functions:
            if inner is None:
                continue
            leaf = getattr(inner, "variable", None)
            if isinstance(leaf, Tensor):
                yield node, leaf
            elif inner not in visited:
                visited.add(inner)
                waiting.append(inner)
