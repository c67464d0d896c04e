"""StageOutput: what a stage of `torch.distributed.pipelining` will send to the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pytest_precision._torch.distributed import stage_outputs
from pytest_precision.auditing.sharding import units


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What one stage computes and sends.

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
        """The dtypes that go to the next stage, as far as they are known."""
        if self.is_last:
            return ()
        return self.declared or ((self.returns,) if self.returns else ())

    @classmethod
    def of(cls, stage: Any) -> StageOutput:
        """Read a stage, whose module is not called."""
        root = next((unit for unit, _ in units(stage.submod)), None)
        dtypes = {p.dtype for p in stage.submod.parameters() if p.dtype.is_floating_point}
        stored = dtypes.pop() if len(dtypes) == 1 else None
        computes = root.computes if root and root.computes else stored
        returns = root.outputs if root and root.outputs else computes
        name = f"stage {stage.stage_index} of {stage.num_stages}"
        return cls(name, computes, returns, tuple(stage_outputs(stage)), bool(stage.is_last))


def outputs(stages: list[Any]) -> Iterator[StageOutput]:
    """Yield the tensors that each stage sends to the next one."""
    yield from map(StageOutput.of, stages)
