"""Modes: whether a model trains, which no tensor of it says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from pytest_precision.engine.observation import Observation, whole


def modes(modules: Iterable[tuple[str, nn.Module]], prefix: str = "") -> Iterator[Observation]:
    """Yield whether a model trains, and each of its modules that is in the other mode.

    Layouts may divide a model into other modules; those that are in the mode of the whole are left
    out, so that it makes no difference.

    Args:
        modules: the model and then all modules in it, with their names.
        prefix: beginning of the names, empty or with a dot.
    """
    training: bool | None = None
    for name, module in modules:
        if training is None:
            training = module.training
            yield whole("flag", f"{prefix}training", torch.tensor(training))
        elif module.training != training:
            mode = "training" if module.training else "evaluation"
            yield whole("flag", f"{name} in {mode} mode", torch.tensor(module.training))
