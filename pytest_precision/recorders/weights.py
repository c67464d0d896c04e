"""Weights: what an optimizer updates, as high-precision weights and this rank's shards of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Observation

MEASURED_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Elements measured at once: temporaries stay in a CPU's cache, and kernels on a GPU are large."""


@dataclass(frozen=True)
class Weight:
    """A tensor that an optimizer updates, with functions that return its values and its shards.

    Attributes:
        name: its logical name.
        parameter: as the optimizer has it.
        effective: returns the weight that it represents now, in its shape.
        pieces: returns what this rank holds of the logical tensors in a tensor of its shape.
    """

    name: str
    parameter: Tensor
    effective: Callable[[], Tensor]
    pieces: Callable[[Tensor], list[Observation]]

    @classmethod
    def of(cls, engine: Engine) -> Iterator[Weight]:
        """Yield the tensors that an engine's optimizer updates, as `Weight` objects."""
        for name, parameter in engine.masters():
            effective = partial(engine.effective, parameter)
            pieces = partial(_pieces, engine, name)
            yield cls(name, parameter, effective, pieces)


def _pieces(engine: Engine, name: str, tensor: Tensor) -> list[Observation]:
    """Return the pieces of the model's tensors that this rank holds in `tensor`."""
    parts = engine.logical_parts(name, tensor)
    return [engine.piece("lost_updates", part, own.detach()) for part, own in parts]


@dataclass(frozen=True)
class Watched:
    """A weight with copies of its shards, gradient and options from before an optimizer step.

    Attributes:
        weight: the weight.
        grad: the gradient that the step reads; None for a weight that it leaves alone.
        group: its hyperparameters.
        before: a copy of each of its pieces; none without a gradient.
    """

    weight: Weight
    grad: Tensor | None
    group: Mapping[str, Any]
    before: list[Tensor]
