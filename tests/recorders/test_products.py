"""In which dtypes something multiplies is seen, however it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pytest_precision.recorders.products import Products

LOW = torch.bfloat16


def seen(computation: Callable[[], object]) -> set[str]:
    dtypes: set[str] = set()
    with Products(dtypes):
        computation()
    return dtypes


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=LOW, requires_grad=True)


@pytest.mark.parametrize(
    "computation",
    [
        lambda: nn.Linear(4, 4, dtype=LOW)(ones(2, 4)),
        lambda: ones(2, 4) @ ones(4, 2),
        lambda: torch.einsum("ij,kj->ik", ones(2, 4), ones(3, 4)),
        lambda: torch.linalg.multi_dot([ones(2, 4), ones(4, 2)]),
        lambda: nn.Conv1d(4, 4, 1, dtype=LOW)(ones(4, 2)),
        lambda: F.scaled_dot_product_attention(*(ones(1, 2, 4) for _ in range(3))),
        lambda: nn.MultiheadAttention(4, 2, dtype=LOW)(*(ones(2, 4) for _ in range(3))),
        lambda: nn.LSTM(4, 4, dtype=LOW)(ones(2, 4)),
        lambda: checkpoint(nn.Linear(4, 4, dtype=LOW), ones(2, 4), use_reentrant=False),
        lambda: torch.compile(nn.Linear(4, 4, dtype=LOW), backend="eager")(ones(2, 4)),
    ],
    ids=["linear", "@", "einsum", "dot", "conv", "sdpa", "mha", "lstm", "checkpoint", "compiled"],
)
def test_a_product_is_seen(computation: Callable[[], object]) -> None:
    """By modules, by functions, and recomputed or compiled."""
    assert seen(computation) == {"bfloat16"}


def test_autocast_is_seen_in_the_result() -> None:
    """Parameters and inputs are fp32 there."""
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu", dtype=LOW):
        assert seen(lambda: layer(x)) == {"bfloat16"}
        with torch.autocast("cpu", enabled=False):
            assert seen(lambda: layer(x)) == {"float32"}


def test_storage_is_not_seen() -> None:
    """A weight in bf16 that is multiplied in fp32, and a rounded activation, compute in fp32."""
    assert seen(lambda: F.linear(ones(2, 4).float(), ones(3, 4).float()).bfloat16()) == {"float32"}


def test_what_multiplies_nothing_is_not_seen() -> None:
    """Casts, sums and losses."""
    assert seen(lambda: F.mse_loss(ones(3) + ones(3), ones(3)).float()) == set()
