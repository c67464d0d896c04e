"""Casts of master weights to the weights of a model, whole or shared among the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pytest_precision.te.groups import is_group, members
from pytest_precision.te.storages import family

BYTES = ("_data", "_rowwise_data", "_columnwise_data")
"""Attributes of Transformer Engine's tensors with the bytes that a shard of masters decides."""


def store_master(parameter: Any, master: Tensor) -> None:
    """Round or quantize a master into its parameter; one by one if the parameter holds several."""
    if not is_group(parameter):
        parts: list[tuple[Any, Tensor]] = [(parameter, master)]
    else:
        parts = list(zip(members(parameter), master.unbind(), strict=True))
    for part, exact in parts:
        if hasattr(part, "quantize_"):
            part.quantize_(exact.to(part.dtype))
        else:
            part.copy_(exact)


def store_by_shards(pairs: Sequence[tuple[Any, Tensor]], rank: int, ranks: int) -> None:
    """Cast masters to weights, each rank its share of elements, and exchange the bytes.

    Args:
        pairs: weights with whole masters.
        rank: that of this process.
        ranks: number of ranks.
    """
    utils = import_module("transformer_engine.pytorch.tensor.utils")
    quantized = [(weight, master) for weight, master in pairs if family(weight)]
    for weight, master in pairs:
        if not family(weight):
            store_master(weight, master)
    weights = [weight for weight, _ in quantized]
    ranges = [_range(weight, rank, ranks) for weight in weights]
    shards = [
        master.detach().view(-1)[start:stop] if start < stop else None
        for (_, master), (start, stop) in zip(quantized, ranges, strict=True)
    ]
    utils.quantize_master_weights(
        weights,
        shards,
        [start if start < stop else None for start, stop in ranges],
        dist.group.WORLD,
        manual_post_all_gather_processing=True,
    )
    for weight in weights:
        for owner in range(ranks):
            _send(weight, _range(weight, owner, ranks), owner)
    utils.post_all_gather_processing(weights)


def _range(weight: Any, rank: int, ranks: int) -> tuple[int, int]:
    """Return begin and end of a rank's share of a weight's elements.

    In NVFP4 it is a whole number of bytes, each of which holds two elements.
    """
    together = 2 if family(weight) == "nvfp4" else 1
    each = -(-weight.numel() // (ranks * together)) * together
    return min(rank * each, weight.numel()), min((rank + 1) * each, weight.numel())


def _send(weight: Any, elements: tuple[int, int], owner: int) -> None:
    """Broadcast a range of a weight's bytes from the rank that has cast it; a collective."""
    for name in BYTES:
        held = getattr(weight, name, None)
        made_later = name == "_columnwise_data" and family(weight) != "mxfp8"
        if held is not None and not made_later and elements[0] < elements[1]:
            start, stop = (place * held.numel() // weight.numel() for place in elements)
            dist.broadcast(held.view(-1)[start:stop], owner)
