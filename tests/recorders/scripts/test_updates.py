"""How many updates a loop loses, as a meter beside its trace counts them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import unchanged
from checked import Recorded

from pytest_precision import Cell
from pytest_precision.probes.lost_updates.update_log import Counts, UpdateLog
from pytest_precision.recorders.scripts.script_recorder import Record


def totals(folder: Path, world_size: int = 1) -> Counts:
    """Add up the counts of all tensors and steps."""
    return sum(UpdateLog.read(folder, world_size).totals().values(), Counts())


def test_every_element_of_every_step_is_counted(recorded: Recorded, tmp_path: Path) -> None:
    """A parameter with a gradient is updated everywhere, and fp32 holds nearly all of it."""
    recorded(unchanged.plain, steps=3)
    counts = totals(tmp_path)
    elements = sum(parameter.numel() for parameter in unchanged.Net().parameters())
    assert 0.9 * 3 * elements < counts.updates <= 3 * elements
    assert counts.lost_by_size < 1e-4


def test_bf16_parameters_lose_updates(recorded: Recorded, tmp_path: Path) -> None:
    """The step swallows what is less than half a unit in the last place."""
    recorded(partial(unchanged.plain, planted="bf16 parameters"), steps=3)
    assert totals(tmp_path).share > 0.01


def test_a_step_that_a_scaler_skips_is_not_measured(recorded: Recorded, tmp_path: Path) -> None:
    """Nothing was to be updated, so nothing is lost."""
    recorded(partial(unchanged.scaled, planted="overflow"), steps=3)
    assert [*UpdateLog.read(tmp_path, 1).steps] == [1, 3]


class Wrapping(torch.optim.Optimizer):
    """Runs another optimizer, whose parameters are its own, too."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})
        self.state = inner.state

    def step(self) -> None:
        self.inner.step()


def test_of_optimizers_in_one_another_the_inner_one_is_measured(
    recorded: Recorded, tmp_path: Path
) -> None:
    """Each element counts once a step."""

    def loop(cell: Cell, record: Record) -> None:
        model = unchanged.Net()
        optimizer = Wrapping(unchanged.adamw(model))
        with record():
            for inputs, targets in unchanged.batches():
                torch.nn.functional.mse_loss(model(inputs).float(), targets).backward()
                optimizer.step()
                optimizer.zero_grad()

    recorded(loop, steps=1)
    sizes = {name: p.numel() for name, p in unchanged.Net().named_parameters()}
    [step] = UpdateLog.read(tmp_path, 1).steps.values()
    assert step.keys() == sizes.keys()
    assert all(0 < counts.updates <= sizes[name] for name, counts in step.items())
