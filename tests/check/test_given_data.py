"""A workload that gives other data than it must is named, and the layouts are not blamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_precision import Cell, Parity, ParityError, Workload, layouts, workloads

ParityIn = Callable[[Cell], Parity]

TWO_STEPS = Cell(sequence="train2")
TWO_RANKS = Cell(sequence="train2", world_size=2)


class Noisy(workloads.mlp):
    """Adds to the inputs what `source` makes of step and cell."""

    def __init__(self) -> None:
        super().__init__(width=17, depth=1)

    def source(self, cell: Cell, step: int) -> int:
        raise NotImplementedError

    def microbatches(self, cell: Cell, step: int) -> Sequence[Any]:
        noise = torch.Generator().manual_seed(self.source(cell, step))
        return [
            batch._replace(inputs=batch.inputs + torch.rand((), generator=noise))
            for batch in super().microbatches(cell, step)
        ]


class ByRank(Noisy):
    """Gives each rank data of its own, as a sampler does that splits the data itself."""

    def source(self, cell: Cell, step: int) -> int:
        return dist.get_rank()


class Unseeded(Noisy):
    """Draws from what the machine has gathered."""

    def source(self, cell: Cell, step: int) -> int:
        return torch.Generator().seed()


class BySize(Noisy):
    """Gives more ranks other data."""

    def source(self, cell: Cell, step: int) -> int:
        return cell.world_size


class Forgetful(Noisy):
    """Goes on in its data instead of looking at the step."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def source(self, cell: Cell, step: int) -> int:
        self.asked += 1
        return self.asked


@pytest.mark.parametrize(
    ("workload", "cell", "reference_cell", "words"),
    [
        (
            ByRank,
            TWO_RANKS,
            None,
            "the workload gave rank 1 other data than rank 0 in microbatch 0 of step 1",
        ),
        (
            Unseeded,
            TWO_STEPS,
            None,
            "the workload gave other data in the second run, in microbatch 0 of step 1: is it",
        ),
        (
            BySize,
            TWO_RANKS,
            TWO_STEPS,
            "in microbatch 0 of step 1: is it random, or does it depend on world_size?",
        ),
        (
            Forgetful,
            TWO_STEPS.replace(sequence="train2-skip-train2"),
            None,
            "the workload gave rank 0 other data for step 3 in a second call in the candidate",
        ),
    ],
    ids=["by rank", "unseeded", "by world size", "forgetful"],
)
def test_other_data_are_an_error_of_the_workload(
    parity_there: ParityIn,
    workload: type[Workload],
    cell: Cell,
    reference_cell: Cell | None,
    words: str,
) -> None:
    """All four pass or fail in the layout's name where nobody looks at the data."""
    with pytest.raises(ParityError) as failure:
        parity_there(cell).check(
            layouts.distributed_optimizer,
            layouts.adamw,
            workload=workload,
            reference_cell=reference_cell,
        )
    verdict = failure.value.verdict
    assert verdict.outcome == "error"
    assert words in verdict.reason
    assert "torch.Generator().manual_seed(step)" in str(failure.value)
