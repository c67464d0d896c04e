"""Make a step's gradients overflow on one rank, and check that all ranks skip it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS


class SkippedStep:
    """A step of an engine whose gradients are made to overflow on one rank.

    Args:
        engine: before the step.
        capture: what the engine shows its gradients to.
        cell: where it is trained.
    """

    def __init__(self, engine: Engine, capture: Capture, cell: Cell) -> None:
        self._engine = engine
        self._capture = capture
        self._cell = cell
        self._rates = rates(engine)
        self._weights = weights(engine)

    def overflow(self, step: int) -> None:
        """Run `forward_backward` so that the gradients of the last rank overflow.

        All of them do where the engine cannot show its gradients or quantizes them, else one
        tensor.
        """
        engine = self._engine
        rank, size = engine.data_parallel
        last = rank == size - 1
        reached = "grad" not in engine.unobservable
        by_loss = not reached or PRECISIONS[self._cell.precision].quantized
        self._capture.overflow_factor = math.inf if last and by_loss else 1.0
        engine.forward_backward(step)
        self._capture.overflow_factor = 1.0
        if last and not by_loss:
            gradients = map(engine.gradient, engine.model.parameters())
            for gradient in [tensor for tensor in gradients if tensor is not None][-1:]:
                gradient.fill_(math.inf)

    def expect_overflow(self) -> None:
        """Raise if an engine updated its weights, with a finite norm, in a step made to overflow.

        Raises:
            RuntimeError: the norm is finite, and the step was made.
        """
        moved = not all(map(torch.equal, self._weights, weights(self._engine)))
        if moved and bool(torch.isfinite(self._engine.grad_norm).all()):
            raise RuntimeError(
                expected_but_got(
                    "the gradients of a skipped step to overflow",
                    f"grad_norm={float(self._engine.grad_norm)}, and weights moved",
                    "multiply the loss by self.loss_factor before its backward, or the gradients "
                    "by self.overflow_factor",
                )
            )

    def changed_rates(self, step: int) -> Iterator[str]:
        """Yield in words each group's learning rate that the skipped step has changed.

        No moment before it shows the rates that it started with.
        """
        for group, (before, after) in enumerate(zip(self._rates, rates(self._engine), strict=True)):
            if before != after:
                change = f"skip after step {step} changed lr of group{group}"
                yield f"{change} from {before!r} to {after!r}"


def rates(engine: Engine) -> list[float]:
    """Return the learning rate of each parameter group of an engine's optimizer."""
    return [float(group["lr"]) for group in engine.optimizer.param_groups]


def weights(engine: Engine) -> list[Tensor]:
    """Return copies of this rank's shards of the weights that the optimizer updates."""
    pieces = (engine.piece("master", n, engine.effective(m)) for n, m in engine.masters())
    return [piece.tensor.detach().clone() for piece in pieces]
