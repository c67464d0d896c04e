"""What an engine of Megatron-core computes beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_precision.recipes.megatron import MegatronEngine, placement


def test_a_norm_is_on_the_device_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL sums nothing that is on the CPU, and torch adds no number of a GPU to one there."""
    monkeypatch.setattr(placement, "counts_in_norm", lambda *_, **__: True)
    summed: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", summed.append)
    engine: Any = SimpleNamespace(model=nn.Linear(2, 3, device="meta"), sharded=False)
    gradient = torch.ones(3, 2, device="meta")
    assert MegatronEngine._norm(engine, [("weight", gradient)]).device.type == "meta"
    assert [squares.device.type for squares in summed] == ["meta"]
