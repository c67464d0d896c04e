"""Modes: what no tensor of a model says."""

from __future__ import annotations

import pytest
from torch import nn

from pytest_precision.engine.modes import ModuleSettings, modes, module_settings


def seen(model: nn.Module, start: ModuleSettings) -> list[str]:
    """The names of what is said of a model."""
    return [flag.name for flag in modes(model.named_modules(), start=start)]


def test_what_is_in_the_mode_of_the_whole_is_left_out() -> None:
    """A model that is divided into other modules is in the same mode."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.1)))
    assert seen(model, {}) == seen(nn.Linear(2, 2), {}) == ["training"]
    model[1].eval()
    assert seen(model, {}) == ["training", "1 in evaluation mode", "1.0 in evaluation mode"]


def test_dropout_that_was_changed_is_named() -> None:
    """An evaluation that turns it off for good would show in the next step's loss alone."""
    model = nn.Sequential(nn.Dropout(0.25), nn.AlphaDropout(0.5))
    start = module_settings(model.named_modules())
    assert seen(model, start) == ["training"]
    model[0].p = 0.0
    assert seen(model, start) == ["training", "dropout 0 with p=0 instead of 0.25"]


@pytest.mark.parametrize(
    "kind",
    [
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
        *(nn.AlphaDropout, nn.FeatureAlphaDropout),
    ],
)
def test_every_dropout_of_torch_is_known(kind: type[nn.Dropout]) -> None:
    """One that is not would be turned off unseen."""
    model = nn.Sequential(kind(0.25))
    start = module_settings(model.named_modules())
    model[0].p = 0.0
    assert seen(model, start)[1:] == ["dropout 0 with p=0 instead of 0.25"]
