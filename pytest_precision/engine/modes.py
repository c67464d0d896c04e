"""Read the training mode of a model's modules, and module settings that have changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision.engine.attributes import OWN, own_class
from pytest_precision.engine.observation import Observation, whole

DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
"""Modules with a probability."""

ModuleSettings = Mapping[str, Mapping[str, Any]]
"""Name of a module to name to value of what it is set to."""


def module_settings(modules: Iterable[tuple[str, nn.Module]]) -> ModuleSettings:
    """Return, by module, the settings of torch's modules, such as a dropout probability."""
    return {name: settings for name, module in modules if (settings := _settings(module))}


def _settings(module: nn.Module) -> dict[str, Any]:
    kind = own_class(module)
    # Others of torch are wrappers.
    if kind is not nn.Module and kind.__module__.startswith("torch.nn.modules."):
        fields = {key: value for key, value in vars(module).items() if key not in OWN}
        return {key: value for key, value in fields.items() if _is_setting(value)}
    return {"p": module.p} if isinstance(module, DROPOUT) else {}


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, (bool, int, float, str))


def modes(
    modules: Iterable[tuple[str, nn.Module]], prefix: str = "", start: ModuleSettings | None = None
) -> Iterator[Observation]:
    """Yield the model's training mode, modules that differ from it, and changed module settings.

    Layouts may divide a model into other modules; those that are in the mode of the whole, and are
    set to what they were at the start, are left out, so that it makes no difference.

    Args:
        modules: the model and then all modules in it, with their names.
        prefix: beginning of the names, empty or with a dot.
        start: the settings at the start.
    """
    training: bool | None = None
    for name, module in modules:
        if training is None:
            training = module.training
            yield whole("flag", f"{prefix}training", torch.tensor(training))
        elif module.training != training:
            mode = "training" if module.training else "evaluation"
            yield whole("flag", f"{name} in {mode} mode", torch.tensor(module.training))
        before = (start or {}).get(name, {})
        settings = _settings(module) if before else {}
        for key in settings.keys() & before.keys():
            if repr(settings[key]) != repr(before[key]):
                yield _changed_observation(name, module, key, settings[key], before[key])


def _changed_observation(
    name: str, module: nn.Module, key: str, setting: Any, before: Any
) -> Observation:
    module_kind = "dropout " if isinstance(module, DROPOUT) else f"{type(module).__name__} "
    change = f"{module_kind}{name} with {key}={_short(setting)} instead of {_short(before)}"
    return whole("flag", change, torch.tensor(True))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def trained(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, bool]:
    """Return which parameters are trained: the `requires_grad` of each, by name."""
    return {name: parameter.requires_grad for name, parameter in parameters}


def thawed(requires_grad: Mapping[str, bool], start: Mapping[str, bool]) -> Iterator[Observation]:
    """Yield an observation for each parameter that was frozen or thawed since the start."""
    for name, is_trained in requires_grad.items():
        if is_trained != start.get(name, is_trained):
            change = "is trained since" if is_trained else "is frozen since"
            yield whole("flag", f"{name} {change} the start", torch.tensor(is_trained))
