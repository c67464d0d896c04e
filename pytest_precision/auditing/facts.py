"""SetupFacts: all that the audit's checks read about a model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pytest_precision.auditing import parallelism, setup_table
from pytest_precision.auditing.master_weights import Ownership
from pytest_precision.auditing.parallelism import ShardingUnit, StageOutput
from pytest_precision.auditing.setup import TrainingSetup
from pytest_precision.auditing.setup_table import TableRow


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
        sharded = [found for model in setup.models for found in parallelism.units(model)]
        unit_of = {id(parameter): unit for unit, own in sharded for parameter in own}
        stages = [*map(StageOutput.of, setup.stages)]
        units = [unit for unit, _ in sharded]
        return cls(
            setup, ownership, units, stages, [*setup_table.table_rows(setup, ownership, unit_of)]
        )

    def trained(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter that requires gradients."""
        for name, parameter in self.ownership.parameters.items():
            if parameter.requires_grad:
                yield name, parameter
