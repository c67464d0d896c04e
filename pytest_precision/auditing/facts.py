"""SetupFacts: all that the audit's checks read about a model and its optimizer, and a table of it.

A row of the table says in which dtypes one tensor is stored, updated and computed with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pytest_precision.auditing.finding import short_dtype
from pytest_precision.auditing.master_weights import Ownership, Updated
from pytest_precision.auditing.optimizer_facts import PRECISE
from pytest_precision.auditing.parallelism import ShardingUnit, StageOutput, units
from pytest_precision.auditing.setup import TrainingSetup
from pytest_precision.auditing.trial_rounding import TrialRounding


@dataclass(frozen=True, slots=True)
class TableRow:
    """One parameter or buffer, with its dtypes and optimizer, as a row of the table of an audit.

    Attributes:
        name: its logical name.
        kind: `parameter`, `frozen` for one that is not trained, or `buffer`.
        size: number of elements, those of other ranks included.
        stored: dtype that it is stored in.
        computes: dtype that it is computed with in, where a sharding policy says so.
        reduces: dtype that its gradient is reduced in, where a sharding policy says so.
        master: dtype of the weight that updates go to, and where it is.
        states: name and dtype of what the optimizer keeps for it; empty where that is not known.
        optimizer: what updates it.
    """

    name: str
    kind: str
    size: int
    stored: str
    computes: str = ""
    reduces: str = ""
    master: str = ""
    states: tuple[tuple[str, str], ...] = ()
    optimizer: str = ""

    def is_like(self) -> TableRow:
        """Return this table row without name and size, so that rows of like tensors are equal."""
        return replace(self, name="", size=0)


class Trials:
    """What steps on copies show of how optimizers round, tried once for each group and dtype."""

    def __init__(self) -> None:
        self._tried: dict[tuple[int, torch.dtype], TrialRounding | None] = {}

    def of(self, updated: Updated) -> TrialRounding | None:
        """Return how the optimizer of a tensor rounds; None if that cannot be tried."""
        key = id(updated.group), updated.tensor.dtype
        if key not in self._tried:
            self._tried[key] = TrialRounding.of(updated.holder, updated.group, updated.tensor)
        return self._tried[key]


@dataclass(frozen=True)
class SetupFacts:
    """What can be read of a model and its optimizer without a step, such as dtypes and masters.

    Attributes:
        setup: what the loop was built of.
        ownership: who updates which parameter.
        units: what FSDP shards, and by which policy.
        stages: what pipeline stages send.
        rows: everything that is stored.
    """

    setup: TrainingSetup
    ownership: Ownership
    units: list[ShardingUnit]
    stages: list[StageOutput]
    rows: list[TableRow]

    @classmethod
    def of(cls, *parts: Any) -> SetupFacts:
        """Collect facts from models, optimizers and other parts of a training loop.

        Nothing is changed in them, and no step is run.
        """
        setup = TrainingSetup.of(*parts)
        ownership = Ownership(setup)
        sharded = [
            unit_with_parameters for model in setup.models for unit_with_parameters in units(model)
        ]
        unit_of = {id(parameter): unit for unit, parameters in sharded for parameter in parameters}
        stages = [*map(StageOutput.of, setup.stages)]
        rows = [*_table_rows(setup, ownership, unit_of)]
        return cls(setup, ownership, [unit for unit, _ in sharded], stages, rows)

    @cached_property
    def trials(self) -> Trials:
        """Return how optimizers round, as optimizer steps on copies of their tensors show."""
        return Trials()

    def trained(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter that requires gradients."""
        for name, parameter in self.ownership.parameters.items():
            if parameter.requires_grad:
                yield name, parameter


def _table_rows(
    setup: TrainingSetup, ownership: Ownership, unit_of: Mapping[int, ShardingUnit]
) -> Iterator[TableRow]:
    """Yield a row of the audit's table per tensor: parameters first, then buffers.

    Args:
        setup: has the buffers.
        ownership: has the parameters, and knows what updates them.
        unit_of: id of a parameter to the unit that it is sharded in.
    """
    for name, parameter in ownership.parameters.items():
        unit = unit_of.get(id(parameter))
        first = next(iter(ownership.by_name.get(name, ())), None)
        yield TableRow(
            name,
            "parameter" if parameter.requires_grad else "frozen",
            sum(map(math.prod, setup.shapes(parameter))),
            short_dtype(parameter.dtype),
            short_dtype(unit.computes) if unit else "",
            short_dtype(unit.reduces) if unit else "",
            *(_updated(first) if first else ()),
        )
    for model in setup.models:
        for name, buffer in model.named_buffers():
            yield TableRow(name, "buffer", buffer.numel(), short_dtype(buffer.dtype))


def _updated(updated: Updated) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """Return a tensor's columns in the audit: master, state dtypes and name of its optimizer."""
    states = updated.holder.states(updated.tensor, updated.group) or {}
    return (
        _master(updated, states),
        tuple((k, short_dtype(d)) for k, d in states.items()),
        updated.holder.name,
    )


def _master(updated: Updated, states: Mapping[str, torch.dtype]) -> str:
    if updated.relation != "own":
        return f"{short_dtype(updated.tensor.dtype)} in the optimizer's groups"
    master_dtype = next((dtype for name, dtype in states.items() if "master" in name), None)
    if master_dtype is not None and updated.tensor.dtype not in PRECISE:
        whole = (
            "fp32 as 16 more bits"
            if not master_dtype.is_floating_point
            else short_dtype(master_dtype)
        )
        return f"{whole} in the optimizer's state"
    ways = {"master": "the parameter itself", "compensated": "the parameter and its compensation"}
    return ways.get(updated.holder.rounding(updated.tensor, updated.group), "none")
