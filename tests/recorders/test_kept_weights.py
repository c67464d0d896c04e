"""Weights that were rounded between two updates: which are compared, and which are found."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from pytest_precision.engine.observation import piece
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.weights import LEAST_ROUNDED, KeptWeights, Watched, Weight


def watched(held: Tensor, kept: KeptWeights) -> Watched:
    """What an update starts from, of a weight that this rank holds whole."""
    pieces = lambda tensor: [piece("lost_updates", "w", tensor)]  # noqa: E731
    weight = Weight("w", held, lambda: held, pieces)
    (own,) = pieces(held)
    return Watched(weight, torch.ones_like(held), {}, [kept.before(("w", 0), own)])


def changed(left: Tensor, now: Tensor) -> KeptWeights:
    """What is found of a weight that an update leaves as `left` and the next one meets as `now`."""
    kept, held = KeptWeights(), left.clone()
    kept.leave([watched(held, kept)])
    held.copy_(now)
    watched(held, kept)
    return kept


def test_a_weight_that_is_set_to_zero_was_not_rounded() -> None:
    """Rounded to fp16, its small numbers are zeros, too."""
    small = torch.linspace(1e-9, 2e-8, 16)
    assert not small.half().any()
    assert changed(small, torch.zeros(16)).read_back(2) == []
    mixed = torch.cat([small, torch.full((LEAST_ROUNDED,), 0.1)])
    (found,) = changed(mixed, mixed.half().float()).read_back(2)
    assert (found.grid, found.step) == ("float16", 2)


@pytest.mark.parametrize(("size", "compared"), [(0, 0), (LEAST_ROUNDED - 1, 0), (LEAST_ROUNDED, 1)])
def test_a_shard_that_cannot_be_objected_to_is_not_counted(size: int, compared: int) -> None:
    """Too few numbers may lie on a grid by chance, so they are not judged."""
    left = torch.full((size,), 0.1)
    kept = changed(left, left.bfloat16().float())
    assert (kept.compared, len(kept.read_back(2))) == (compared, compared)


def test_a_rank_without_a_piece_calls_what_others_call() -> None:
    """An engine's `effective` may gather its weight from all ranks, which would wait for this one.

    A weight without a gradient is left alone by all of them.
    """
    calls: list[str] = []

    def effective(name: str, parameter: nn.Parameter) -> Tensor:
        calls.append(name)
        return parameter

    moved, idle = nn.Parameter(torch.ones(9)), nn.Parameter(torch.ones(9))
    moved.grad = torch.ones(9)
    optimizer = torch.optim.SGD([moved, idle], lr=0.1)
    weights = [
        Weight(name, one, partial(effective, name, one), lambda _: [])
        for name, one in (("moved", moved), ("idle", idle))
    ]
    meter = UpdateMeter()
    meter.kept.leave(meter.before(optimizer, weights))
    assert calls == ["moved", "moved"]
