"""A small model, and what an audit says of it in short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import audit


@pytest.fixture
def model() -> nn.Module:
    """Weights of the usual sizes, a norm and biases, in fp32."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 32), nn.LayerNorm(32), nn.Linear(32, 8))


@pytest.fixture
def rules() -> Callable[..., dict[str, str]]:
    """Rule to severity of what is found in a set-up; notes are left out."""

    def found(*parts: Any) -> dict[str, str]:
        return {f.rule: f.severity for f in audit(*parts).findings if f.severity != "note"}

    return found
