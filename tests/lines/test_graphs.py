"""The replay of a CUDA graph is one operation, and what it may have made is said to be."""

from __future__ import annotations

import inspect

import pytest
import torch
from logged_blocks import culprit_between, operations
from torch import Tensor

from pytest_precision.probes.lines.operations import GRAPH, Holding, OperationLog


class Product:
    """Stands for a captured graph: it writes to memory that it keeps, and torch sees nothing."""

    def __init__(self, inputs: Tensor, factor: float) -> None:
        self.inputs, self.factor, self.made = inputs, factor, torch.zeros(3)

    def replay(self) -> None:
        self.made.numpy()[:] = self.inputs.numpy() * self.factor


def logged(factor: float, patch: pytest.MonkeyPatch) -> OperationLog:
    """Log a step whose product is replayed."""
    patch.setattr(torch.cuda.CUDAGraph, "replay", Product.replay)
    weight, inputs = torch.arange(12.0).reshape(4, 3), torch.arange(1.0, 4.0)
    graph = Product(inputs, factor)
    with operations() as logger:
        logger.give([(Holding("param", "weight"), weight)])
        read = graph.made + 1.0
        torch.cuda.CUDAGraph.replay(graph)  # type: ignore[arg-type]
        read = graph.made + 1.0
        weight.add_(read)
        logger.leave([(Holding("param", "weight"), weight)])
    return logger.log


LINE = inspect.getsourcelines(logged)[1] + 8
"""The line of the replay."""


def test_a_replay_is_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has written is another value, though no operation has made it."""
    log = logged(2.0, monkeypatch)
    assert [one.name for one in log.operations].count(GRAPH) == 1
    before, _, after, _ = log.operations
    assert before.read[0].storage == after.read[0].storage
    assert before.read[0].digest != after.read[0].digest
    assert torch.cuda.CUDAGraph.replay is Product.replay


def test_what_a_replay_may_have_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is that of the replay, and the text says how to see more."""
    found = culprit_between(logged(2.0, monkeypatch), logged(3.0, monkeypatch), "param")
    assert (found.operation, found.kind, found.line) == (GRAPH, "unknown", LINE), found.text
    assert "it counts as one operation, and may have made what aten.add.Tensor reads" in found.text
    assert "run the step without the graph" in found.text
