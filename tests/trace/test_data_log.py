"""Every bit of what a workload gives is in the digests of its data, in whatever it is packed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pytest_precision import Cell, Workload
from pytest_precision.trace.data_log import DataLog, DataWatch, data_digest

ONES = torch.ones(2, 3)


@dataclass
class Batch:
    tokens: Any
    size: int = 2


@dataclass(frozen=True)
class Frozen(Workload):
    """Gives what it is told to, by step; `start` is added to the first element."""

    data: list[Any]

    model = groups = tokens = loss = None  # type: ignore[assignment]

    def microbatches(self, cell: Cell, step: int) -> Any:
        return iter(self.data)


@pytest.mark.parametrize(
    "pack",
    [
        lambda tensor: tensor,
        lambda tensor: {"ids": [tensor], "mask": None},
        lambda tensor: (1, "text", Batch(tensor)),
        lambda tensor: SimpleNamespace(tokens=tensor),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.to(torch.bfloat16),
        lambda tensor: tensor.to_sparse(),
        lambda tensor: torch.nested.nested_tensor([tensor], layout=torch.jagged),
    ],
    ids=["tensor", "mapping", "dataclass", "object", "array", "bf16", "sparse", "nested"],
)
def test_one_element_makes_another_digest(pack: Any) -> None:
    """Equal contents have equal digests, whatever memory they are in."""
    other = ONES.clone()
    assert data_digest(pack(ONES)) == data_digest(pack(other))
    other[1, 2] = -1
    assert data_digest(pack(ONES)) != data_digest(pack(other))


@pytest.mark.parametrize(
    "other",
    [ONES.int(), ONES.reshape(3, 2), [ONES], {"x": ONES}, 1.0, None],
    ids=["dtype", "shape", "list", "mapping", "number", "none"],
)
def test_dtype_shape_and_packing_count(other: Any) -> None:
    """The bytes alone do not tell what a model makes of them."""
    assert data_digest(other) != data_digest(ONES)


def test_views_and_what_has_no_memory_can_be_digested() -> None:
    """Strides are not data; a meta tensor has a shape, and an object may hold itself."""
    assert data_digest(ONES.t()) == data_digest(ONES.t().contiguous())
    assert data_digest(ONES.to("meta")) == data_digest(ONES.to("meta"))
    itself: list[Any] = [np.float32(1), torch.device("cpu")]
    itself.append(itself)
    assert data_digest(itself) == data_digest(itself)


def test_a_log_comes_back_with_steps_whose_data_changed(tmp_path: Path) -> None:
    """What was given first is kept, and what is trained on is what was looked at."""
    workload = Frozen([ONES, 2 * ONES])
    watch = DataWatch(workload)
    assert len(workload.microbatches(Cell(), 1)) == 2
    workload.microbatches(Cell(), 2)
    workload.data[1] = 3 * ONES
    workload.microbatches(Cell(), 2)
    watch.write(tmp_path, 0)
    log = DataLog.read(tmp_path, 1)
    both = [data_digest(ONES), data_digest(2 * ONES)]
    assert (log.digests, log.unsteady) == (({1: both, 2: both},), ((2,),))
