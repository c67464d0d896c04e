"""Hooks in a user's modules: none of them is in a copy."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn

from pytest_precision.engine.capture import ModuleHook


@pytest.mark.parametrize("copied", [deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_not_watched(copied: object) -> None:
    """Neither is what watches it copied, such as an open file; the copy computes the same."""
    calls, file = [], open(__file__)  # noqa: SIM115
    with file:
        layer = nn.Linear(2, 2)
        layer.register_forward_pre_hook(ModuleHook(lambda *_: calls.append(file.name)))
        other = copied(layer)  # type: ignore[operator]
    result = other(torch.ones(2))
    assert calls == []
    assert torch.equal(layer(torch.ones(2)), result)
    assert calls == [__file__]
