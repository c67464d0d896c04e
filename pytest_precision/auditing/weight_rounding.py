"""Rounding: the share of updates that a parameter in few digits loses, from its values alone.

An update `u` of a parameter `p` is lost where `p + u` rounds to `p`. With 7 stored bits of
significand, as bf16 has, numbers of magnitude 2^e to 2^(e+1) lie 2^(e-7) apart, so `u` is lost
below half of that, 2^(e-8): where |p| is above 256 to 512 times |u|. Below a power of two, numbers
lie closer by half, so a step down from there is lost below 2^(e-9) only.

Adam's update is about the learning rate: it is exactly that in the first step, where both moments
are of one gradient, and rarely more later (Kingma and Ba, "Adam", section 2.1: |u| is bounded by
about the rate). So what is lost at |u| = rate is a lower estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

SAMPLED_ELEMENTS = 1 << 16
"""Elements that are looked at in each tensor, evenly spread."""


def lost_share(tensor: Tensor, update: float) -> tuple[float, int]:
    """Return the share of a tensor's elements that an update leaves unchanged, and how many it has.

    Half of the elements move up and half down, so both directions count.

    Args:
        tensor: parameter, as stored.
        update: magnitude of the update of each element.
    """
    values = tensor.detach().flatten()
    values = values[:: max(1, -(-values.numel() // SAMPLED_ELEMENTS))]
    exact = values.double()
    still = [
        ((exact + step).to(tensor.dtype) == values).double().mean() for step in (update, -update)
    ]
    return (float(sum(still)) / 2, tensor.numel()) if values.numel() else (0.0, 0)


def lost_together(tensors: Iterable[tuple[Tensor, float]]) -> float | None:
    """Return the share of updates that rounding loses, over all elements of several tensors.

    None where no rate is above 0, since that of a warm-up says nothing about later steps, and for
    tensors without values.
    """
    shares = [lost_share(own, rate) for own, rate in tensors if rate > 0 and not own.is_meta]
    total = sum(size for _, size in shares)
    return sum(share * size for share, size in shares) / total if total else None


def peak_rate(group: Mapping[str, Any]) -> float:
    """Return the highest learning rate in a parameter group: current, initial or maximal.

    Schedulers keep the initial or the highest one beside the current.

    Args:
        group: parameter group of an optimizer.
    """
    rates = (group.get(name, 0.0) for name in ("lr", "initial_lr", "max_lr"))
    return max(float(rate) for rate in rates if rate is not None)
