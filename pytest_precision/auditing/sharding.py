"""ShardingUnit: what a module under FSDP or DDP will compute, reduce and return in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision._torch.distributed import sharding_policy


@dataclass(frozen=True, slots=True)
class ShardingUnit:
    """One module that is sharded by itself, with the parameters in it that no inner unit has.

    Attributes:
        name: of the module; empty for the model itself.
        kind: `FSDP1`, `FSDP2` or `DDP`, which shards nothing, but reduces.
        tensors: number of its own parameters.
        stored: dtype of the shards; None where they differ.
        computes: dtype of the gathered parameters.
        reduces: dtype in which gradients are reduced.
        outputs: dtype that outputs are cast to; None leaves them as computed.
    """

    name: str
    kind: str
    tensors: int
    stored: torch.dtype | None
    computes: torch.dtype | None
    reduces: torch.dtype | None
    outputs: torch.dtype | None


def units(model: nn.Module) -> Iterator[tuple[ShardingUnit, list[Tensor]]]:
    """Yield the units of a model with their parameters, the outer ones first."""
    modules = dict(model.named_modules())
    sharded = {name: (module, sharding_policy(module)) for name, module in modules.items()}
    for name, (module, policy) in sharded.items():
        if policy is not None:
            inner = [own for own in module.modules() if own is not module and sharding_policy(own)]
            beneath = {id(p) for own in inner for p in own.parameters()}
            own = [p for p in module.parameters() if id(p) not in beneath]
            yield _unit(_plain(name), own, *policy), own


def _unit(name: str, parameters: list[Tensor], kind: str, policy: Any) -> ShardingUnit:
    dtypes = {parameter.dtype for parameter in parameters}
    stored = dtypes.pop() if len(dtypes) == 1 else None
    computes = getattr(policy, "param_dtype", None) or stored
    return ShardingUnit(
        name,
        kind,
        len(parameters),
        stored,
        computes,
        getattr(policy, "reduce_dtype", None) or computes,
        getattr(policy, "output_dtype", None),
    )


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_fsdp_wrapped_module")
