"""The weights that a side computes log-probabilities with, by logical name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.trace.lin8 import additive_digest

Weights = Mapping[str, "Tensor | str"]
"""Name to a tensor, or to the digest of one, as `weight_digest` makes it."""

SCALING = "lora_scaling"
"""What the number of an adapter that multiplies its factors is called, beside `lora_A`."""


class WeightTable(NamedTuple):
    """What a side holds for inference.

    Attributes:
        tensors: logical name to the tensor, or to its digest.
        optional: names of what an engine may make by itself: buffers that no checkpoint has.
        active: names of the adapters that compute; None for all.
        deliveries: of a recorded trainer, the engine's name of what is fused or merged to its
            digest, and to the names of what it is made of.
        wrong: of a recorded trainer, the engine's name to the digest of each tensor that it would
            hold if something had gone wrong, and to that cause in words.
    """

    tensors: dict[str, Tensor | str]
    optional: frozenset[str] = frozenset()
    active: tuple[str, ...] | None = None
    deliveries: Mapping[str, tuple[str, tuple[str, ...]]] = {}
    wrong: Mapping[str, Mapping[str, str]] = {}

    @classmethod
    def of(cls, model: nn.Module) -> WeightTable:
        """Read all parameters and buffers of a model; a tied one has each of its names."""
        # First: FSDP2 then frees what its last forward has gathered, and shows its shards again.
        stored = {logical_name(name) for name in model.state_dict()}
        tensors: dict[str, Tensor | str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            tensors[logical_name(name)] = whole_tensor(parameter)
        buffers = dict(model.named_buffers(remove_duplicate=False))
        for name, buffer in buffers.items():
            tensors[logical_name(name)] = whole_tensor(buffer)
        for name, module in model.named_modules():
            for adapter, factor in _scalings(module).items():
                key = f"{logical_name(name)}.{SCALING}.{adapter}"
                tensors[key] = torch.tensor(float(factor), dtype=torch.float64)
        optional = frozenset(map(logical_name, buffers)) - stored
        return cls(tensors, optional, active_adapters(model))


def weight_snapshot(model: nn.Module, *, digests: bool = False) -> dict[str, Tensor | str]:
    """Return a copy of what a model holds, as `history` and the `weights` of a Scorer take it.

    Args:
        model: any; every rank of a sharded one has to call this.
        digests: whether digests are returned in place of the tensors.
    """
    tensors = WeightTable.of(model).tensors
    return {
        name: weight_digest(tensor) if digests else tensor.detach().to("cpu", copy=True)
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor)
    }


def weight_digest(tensor: Tensor) -> str:
    """Return a tensor's dtype, shape and additive digest as one text."""
    return described_digest(dtype_name(tensor.dtype), tensor.shape, additive_digest(tensor))


def described_digest(dtype: str, shape: Sequence[int], digest: str) -> str:
    """Return what `weight_digest` says of a tensor, from its parts."""
    return f"{dtype} {[*shape]} {digest}"


def module_name(name: str) -> str:
    """Return the name of the module of a weight, and that of anything else as it is."""
    return name.replace(".weight", "")


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor without its history, and a sharded one as a whole, which is a collective."""
    tensor = tensor.detach()
    whole: Any = tensor.full_tensor() if is_dtensor(tensor) else tensor
    assert isinstance(whole, Tensor)
    return whole


def logical_name(name: str) -> str:
    """Return a name without what PEFT and wrappers such as DDP put into it."""
    name = unwrapped(name).removeprefix("base_model.model.")
    return name.replace(".base_layer.", ".")


def _scalings(module: nn.Module) -> Mapping[str, Any]:
    scaling = getattr(module, "scaling", None)
    merged = getattr(module, "merged", False)
    factors = hasattr(module, "lora_A") and hasattr(module, "lora_B")
    return scaling if factors and isinstance(scaling, Mapping) and not merged else {}


def active_adapters(model: nn.Module) -> tuple[str, ...] | None:
    """Return the adapters that any layer computes with; None for a model without adapters."""
    names: dict[str, None] | None = None
    for module in model.modules():
        if _scalings(module):
            off = getattr(module, "disable_adapters", False)
            active: Any = [] if off else module.active_adapters
            names = (names or {}) | dict.fromkeys(map(str, active))
    return None if names is None else tuple(names)
