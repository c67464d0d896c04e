"""Record discrete choices (an expert, whether to clip), each with its margin.

A choice either agrees or has flipped, and what follows from a flipped one is no rounding error. The
margin tells whether rounding can have flipped it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from pytest_precision.engine.observable import full
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.matrix.tensor_key import TensorKey, unwrapped

CLIPPED = "norm is clipped"
"""Name of the choice whether gradients are clipped."""

Decisions = Mapping[str, tuple[Tensor, Tensor]]
"""Name to what was chosen and the margins, one row for each thing that it was chosen for."""


def decisions(choices: Decisions, microbatch: int | None = None) -> Iterator[Observation]:
    """Yield observations of discrete choices, such as experts chosen, and of their margins."""
    for name, (chosen, margin) in choices.items():
        key = TensorKey(unwrapped(name), microbatch=microbatch)
        yield whole("decision", key.name("decision"), chosen.detach().long())
        yield whole("margin", key.name("margin"), margin.detach().double())


def of_step(norm: Tensor, max_norm: float | None) -> Decisions:
    """Return whether a gradient norm makes the step clip or skip, and by what margin."""
    norm = full(norm.detach()).double().reshape(())
    finite = torch.isfinite(norm)
    choices = {"step is skipped": (~finite, torch.where(finite, torch.inf, 0.0))}
    if max_norm is not None:
        choices[CLIPPED] = (finite & (norm > max_norm), (norm / max_norm - 1).abs())
    return choices
