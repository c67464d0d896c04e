"""LoRA adapters in a table of weights: their factors, and the weights with them merged."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.rollout.inference_weights import SCALING, Weights, WeightTable

_FACTOR = re.compile(r"(.+)\.lora_([AB])\.(?:(.+)\.)?weight")

MAGNITUDE = "lora_magnitude_vector"
"""What the lengths of the rows of a DoRA adapter are called, beside `lora_A`."""

_BESIDE = re.compile(rf"\.({SCALING}|{MAGNITUDE})\.")

NARROW = (torch.float16, torch.bfloat16)
"""Dtypes in which PEFT does not multiply factors on a CPU."""


class Adapter(NamedTuple):
    """One adapter of one weight.

    Attributes:
        name: of the adapter.
        weight: name of the weight.
        base: the weight without it.
        down, up: the factors A and B.
        scaling: what their product is multiplied by.
        magnitude: of each row of the sum, in DoRA; None in LoRA.
    """

    name: str
    weight: str
    base: Tensor
    down: Tensor
    up: Tensor
    scaling: float
    magnitude: Tensor | None = None

    def delta(self, scaling: float | None = None) -> Tensor:
        """Return what the adapter adds to the weight, as PEFT computes it, in its own dtype.

        Args:
            scaling: in place of its own.
        """
        dtype = self.up.dtype
        up, down = (
            factor.float() if dtype in NARROW else factor for factor in (self.up, self.down)
        )
        product = (up @ down) * (self.scaling if scaling is None else scaling)
        product = product.to(dtype)
        return product if product.shape == self.base.shape else product.T

    def merged(self, *deltas: Tensor) -> Tensor:
        """Return the weight with deltas added to it, each sum rounded once to its dtype.

        In DoRA each row of the sum has the length of its magnitude, as PEFT merges it: 4.4 of
        arXiv 2402.09353.
        """
        weight = self.base
        for delta in deltas:
            weight = (weight + delta).to(self.base.dtype)
        if self.magnitude is None:
            return weight
        lengths: Tensor = torch.linalg.norm(weight, dim=1).to(weight.dtype)
        factors = self.magnitude.flatten() / lengths
        return (factors.view(-1, 1) * weight).to(self.base.dtype)


def has_factors(table: WeightTable) -> bool:
    """Return whether a table has an adapter's factors."""
    return any(map(_FACTOR.fullmatch, table.tensors))


def adapters_of(table: WeightTable) -> dict[str, list[Adapter]]:
    """Return the adapters of each weight of a table that shows its tensors."""
    adapters: dict[str, list[Adapter]] = {}
    for name, down in table.tensors.items():
        match = _FACTOR.fullmatch(name)
        if match is None or match[2] != "A":
            continue
        layer, adapter = match[1], match[3] or "default"
        weight = f"{layer}.weight"
        base, up = table.tensors.get(weight), table.tensors.get(name.replace(".lora_A", ".lora_B"))
        scaling = table.tensors.get(f"{layer}.{SCALING}.{adapter}", torch.tensor(1.0))
        if isinstance(base, Tensor) and isinstance(down, Tensor) and isinstance(up, Tensor):
            number = float(scaling) if isinstance(scaling, Tensor) else 1.0
            rows = table.tensors.get(name.replace(".lora_A", f".{MAGNITUDE}"))
            magnitude = rows if isinstance(rows, Tensor) else None
            adapter_of = Adapter(adapter, weight, base, down, up, number, magnitude)
            adapters.setdefault(weight, []).append(adapter_of)
    return adapters


def is_active(table: WeightTable, adapter: Adapter) -> bool:
    """Return whether an adapter of a table computes."""
    return table.active is None or adapter.name in table.active


def merged(table: WeightTable) -> WeightTable:
    """Return a table in which each weight has its active adapters, and there are no factors."""
    tensors = {
        name: tensor
        for name, tensor in table.tensors.items()
        if not _FACTOR.fullmatch(name) and not _BESIDE.search(name)
    }
    for weight, adapters in adapters_of(table).items():
        for adapter in adapters:
            if is_active(table, adapter):
                tensor = tensors[weight]
                assert isinstance(tensor, Tensor)
                tensors[weight] = adapter._replace(base=tensor).merged(adapter.delta())
    return table._replace(tensors=tensors)


def merged_former(weights: Weights, active: tuple[str, ...] | None) -> Weights:
    """Return former weights with their adapters, without those whose adapters are digests."""
    names = (_FACTOR.fullmatch(name) for name, shown in weights.items() if isinstance(shown, str))
    unknown = {f"{match[1]}.weight" for match in names if match}
    tensors = {name: shown for name, shown in weights.items() if name not in unknown}
    return merged(WeightTable(tensors, active=active)).tensors
