"""Parallelism: in which dtypes FSDP and DDP modules and pipeline stages compute and send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pytest_precision._torch.distributed import managed_by_ddp, sharding_policy, stage_outputs
from pytest_precision.matrix.tensor_key import unwrapped


@dataclass(frozen=True, slots=True)
class ShardingUnit:
    """A module that FSDP or DDP wraps, with the dtypes of its parameters, gradients and outputs.

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
    """Yield (unit, its parameters) for each module that FSDP or DDP wraps, outer ones first."""
    for name, module in model.named_modules():
        policy = sharding_policy(module)
        if policy is not None:
            inner = [
                child
                for child in module.modules()
                if child is not module and sharding_policy(child)
            ]
            beneath = {id(p) for child in inner for p in child.parameters()}
            beneath |= {*map(id, unmanaged(module))}
            parameters = [p for p in module.parameters() if id(p) not in beneath]
            yield _unit(unwrapped(name), parameters, *policy), parameters


def unmanaged(module: nn.Module) -> list[Tensor]:
    """Return the parameters in a module of DDP or FSDP2 that it neither shards nor reduces.

    They came after it was wrapped.
    """
    policy = sharding_policy(module)
    if policy is None or policy[0] == "FSDP1":
        return []
    if isinstance(module, nn.parallel.DistributedDataParallel):
        managed = {*map(id, managed_by_ddp(module))}
        return [p for p in module.parameters() if id(p) not in managed]
    return [p for p in module.parameters() if not isinstance(p, DTensor)]


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


@dataclass(frozen=True, slots=True)
class StageOutput:
    """The output dtypes of a pipeline stage: computed and sent.

    Attributes:
        name: number of the stage, and how many there are.
        computes: dtype of the stage's last computation: its policy's, or that of its parameters.
        returns: dtype that its policy casts outputs to, or that of the computation.
        declared: dtypes of the example outputs that the stage was made with; empty without them,
            since a stage then finds out in its first step.
        is_last: whether it sends nothing on.
    """

    name: str
    computes: torch.dtype | None
    returns: torch.dtype | None
    declared: tuple[torch.dtype, ...]
    is_last: bool

    @property
    def sends(self) -> tuple[torch.dtype, ...]:
        """The dtypes that a pipeline stage sends to the next one, as far as they are known."""
        if self.is_last:
            return ()
        return self.declared or ((self.returns,) if self.returns else ())

    @classmethod
    def of(cls, stage: Any) -> StageOutput:
        """Return the dtypes that a pipeline stage computes and sends, without running it."""
        root = next((unit for unit, _ in units(stage.submod)), None)
        dtypes = {p.dtype for p in stage.submod.parameters() if p.dtype.is_floating_point}
        stored = dtypes.pop() if len(dtypes) == 1 else None
        computes = root.computes if root and root.computes else stored
        returns = root.outputs if root and root.outputs else computes
        name = f"stage {stage.stage_index} of {stage.num_stages}"
        return cls(name, computes, returns, tuple(stage_outputs(stage)), bool(stage.is_last))
