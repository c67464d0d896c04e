"""Modes: whether a model trains, and what became of its dropout, which no tensor of it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from pytest_precision.engine.observation import Observation, whole

DROPOUT = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
"""Modules with a probability."""


def probabilities(model: nn.Module) -> dict[str, float]:
    """Return name to probability of the dropout modules of a model."""
    return {name: own.p for name, own in model.named_modules() if isinstance(own, DROPOUT)}


def modes(
    modules: Iterable[tuple[str, nn.Module]],
    prefix: str = "",
    dropout: Mapping[str, float] | None = None,
) -> Iterator[Observation]:
    """Yield whether a model trains, and what of its modules is otherwise than it was.

    Layouts may divide a model into other modules; those that are in the mode of the whole, and drop
    what they dropped at the start, are left out, so that it makes no difference.

    Args:
        modules: the model and then all modules in it, with their names.
        prefix: beginning of the names, empty or with a dot.
        dropout: the probabilities at the start.
    """
    start = dropout or {}
    training: bool | None = None
    for name, module in modules:
        if training is None:
            training = module.training
            yield whole("flag", f"{prefix}training", torch.tensor(training))
        elif module.training != training:
            mode = "training" if module.training else "evaluation"
            yield whole("flag", f"{name} in {mode} mode", torch.tensor(module.training))
        if isinstance(module, DROPOUT) and module.p != start.get(name, module.p):
            change = f"dropout {name} with p={module.p:g} instead of {start[name]:g}"
            yield whole("flag", change, torch.tensor(True))
