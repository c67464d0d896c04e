"""Gathers of several dtypes that are coalesced are mixed up by gloo, so nothing here may do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_precision import Cell, Engine, Parity, Workload, layouts, workloads

pytestmark = pytest.mark.slow

ParityIn = Callable[[Cell], Parity]

MLP = partial(workloads.mlp, width=32, depth=1)
LATE = {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 999}


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("collectives are coalesced")


@layouts.fresh_ranks
@layouts.may_leave("torch*")
def guarded(workload: Workload, cell: Cell, *, layout: Callable[..., Engine]) -> Engine:
    """Set up a layout in a rank that takes part in no coalesced collective."""
    for holder in (dist, distributed_c10d):
        patch.object(holder, "_coalescing_manager", refuse).start()
    return layout(workload, cell)


def gathers_together(workload: Workload, cell: Cell) -> Engine:
    """Gather bytes and bf16 in one block, as Megatron-core does."""
    with dist._coalescing_manager():
        for dtype in (torch.uint8, torch.bfloat16):
            out, own = torch.empty(2, dtype=dtype), torch.ones(1, dtype=dtype)
            dist.all_gather_into_tensor(out, own)
    return layouts.adamw(workload, cell)


@pytest.mark.parametrize(
    ("layout", "cell"),
    [
        (partial(layouts.distributed_optimizer, **LATE), Cell("nvfp4", "quantized", True)),
        (layouts.fsdp2, Cell("nvfp4", "bf16")),
        # These gather at the end of a step alone, or nothing.
        pytest.param(
            layouts.distributed_optimizer,
            Cell("mxfp8", "quantized", True),
            marks=pytest.mark.nightly,
        ),
        pytest.param(layouts.ddp, Cell("bf16", "fp32"), marks=pytest.mark.nightly),
    ],
    ids=["late", "fsdp2", "distributed_optimizer", "ddp"],
)
def test_ready_layouts_coalesce_nothing(
    parity_in: ParityIn, layout: Callable[..., Engine], cell: Cell
) -> None:
    """Gathers of bytes, scales and bf16 are operations of their own."""
    cell = cell.replace(sequence="train2", world_size=2)
    parity_in(cell).check(partial(guarded, layout=layout), layout, workload=MLP)


def test_a_coalesced_gather_is_found(parity_in: ParityIn) -> None:
    """The guard fails a layout that does it."""
    cell = Cell("fp32", sequence="train1", world_size=2)
    candidate = partial(guarded, layout=gathers_together)
    with pytest.raises(AssertionError, match="collectives are coalesced"):
        parity_in(cell).check(candidate, layouts.adamw, workload=MLP)
