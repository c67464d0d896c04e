"""What a layout loads from a checkpoint is where its parameters are, also beside a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_step import finish_step
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, layouts, workloads

Layout = Callable[[Workload, Cell], Engine]


def loaded_devices(layout: Layout, folder: str) -> dict[str, set[str]]:
    """On a rank: train and save on the CPU, load on `meta`; return the devices of each state."""
    trained = layout(workloads.mlp(), Cell("bf16"))
    trained.forward_backward(1)
    finish_step(trained)
    trained.save(Path(folder))
    engine = layout(workloads.mlp(), Cell("bf16", device="meta"))
    engine.load(Path(folder))
    devices = defaultdict[str, set[str]](set)
    for _, master in engine.masters():
        for key, value in engine.optimizer.state[master].items():
            if isinstance(value, Tensor):
                devices[key].add(value.device.type)
    return dict(devices)


@pytest.mark.parametrize(
    "layout",
    [
        layouts.adamw,
        layouts.any_precision_adamw,
        layouts.distributed_optimizer,
        layouts.fused_adam,
        layouts.master_adamw,
    ],
    ids=lambda layout: layout.__name__,
)
def test_state_is_loaded_to_where_its_parameter_is(
    run_on_ranks: Callable[..., list[Any]], tmp_path: Path, layout: Layout
) -> None:
    """A step counter stays on the CPU, as torch keeps it; the next step reads the rest at once."""
    (found,) = run_on_ranks(1, loaded_devices, layout, str(tmp_path / "saved"))
    assert found.pop("step", {"cpu"}) == {"cpu"}
    assert {"exp_avg", "exp_avg_sq"} <= found.keys()
    assert found == {key: {"meta"} for key in found}
