"""Meshes of two dimensions, as users write them: their process groups end with each job of kept
ranks, and the next job opens its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from meshes import Shared, hsdp, tensor_parallel

from pytest_precision import Cell, Engine, Parity


@pytest.mark.parametrize(
    ("layout", "world_size"),
    [
        (tensor_parallel, 2),
        # In CI, a mesh has two dimensions on two ranks, too.
        pytest.param(hsdp, 2, marks=pytest.mark.nightly),
        pytest.param(hsdp, 4, marks=pytest.mark.nightly),
        pytest.param(tensor_parallel, 4, marks=pytest.mark.nightly),
    ],
)
def test_every_job_of_kept_ranks_can_open_the_same_mesh(
    parity_in: Callable[[Cell], Parity], layout: Callable[..., Engine], world_size: int
) -> None:
    """Two jobs on the same ranks, and two equal meshes in the one that loads a checkpoint."""
    cell = Cell("fp32", sequence="train1-save-load-skip-train1-eval", world_size=world_size)
    verdict = parity_in(cell).check(
        layout, layout, workload=Shared, reference_cell=cell.replace(sequence="train2-eval")
    )
    assert verdict.outcome == "pass"
