"""State beside weights and one optimizer is seen in an engine, too."""

from __future__ import annotations

import copy
import re
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_precision import Cell, Engine, Parity, ParityError, Verdict, Workload, workloads

ParityIn = Callable[[Cell], Parity]

CELL = Cell(sequence="train2")


def verdict(parity_there: ParityIn, layout: Any, cell: Cell = CELL) -> Verdict:
    """Check a planted layout against the same one."""
    parity = parity_there(cell)
    try:
        return parity.check(partial(layout, planted=True), layout, workload=workloads.mlp)
    except ParityError as failure:
        return failure.verdict


def engine(workload: Workload, cell: Cell, model: nn.Module, kind: Any = Engine) -> Engine:
    """Train a model with SGD and momentum."""
    return kind(workload, cell, model, torch.optim.SGD(workload.groups(model), momentum=0.5))


def conjugated(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    model = workload.model(cell)
    waves = torch.polar(torch.ones(4), torch.arange(4.0) * 0.3)
    model.register_buffer("sine", waves.imag)
    model.register_buffer("minus", (waves if planted else waves.conj()).imag)
    return engine(workload, cell, model)


def quantized(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    model = workload.model(cell)
    factor = 2 if planted else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it will remove them
        values = torch.quantize_per_tensor(
            torch.ones(3) * factor, 0.1 * factor, 0, dtype=torch.qint8
        )
    model.register_buffer("table", values)
    return engine(workload, cell, model)


class Counting(nn.Module):
    """Saves a number that is no tensor."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.count = start

    def get_extra_state(self) -> dict[str, int]:
        """Return what a checkpoint keeps."""
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint."""
        self.count = state["count"]


def extra(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    model = workload.model(cell)
    model.counting = Counting(2 if planted else 1)
    return engine(workload, cell, model)


def named_state(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    made = engine(workload, cell, workload.model(cell))
    made.optimizer.state["global"] = {"seen": 2 if planted else 1}
    return made


class Remembering(Engine):
    """Saves what it remembers of the last steps."""

    def state_beside_weights(self) -> dict[str, Any]:
        """Return what is saved beside weights."""
        return super().state_beside_weights() | {"losses": self._losses}


def remembering(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    made = engine(workload, cell, workload.model(cell), Remembering)
    made._losses = deque([2.0 if planted else 1.0])
    return made


class TwoOptimizers(Engine):
    """The last parameter has an optimizer of its own."""

    planted, updates = False, 0

    def update_weights(self) -> None:
        """Update with both."""
        super().update_weights()
        self.second.step()
        self.updates += 1
        if self.planted and self.updates == 2:
            self.second.param_groups[0]["momentum"] = 0.9


def two_optimizers(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    model = workload.model(cell)
    *first, last = (p for p in model.parameters() if p.requires_grad)
    optimizer = torch.optim.SGD(first, lr=0.1, momentum=0.5)
    made = TwoOptimizers(workload, cell, model, optimizer)
    made.second, made.planted = torch.optim.SGD([last], lr=0.1, momentum=0.5), planted
    return made


class Averaging(Engine):
    """Keeps an average of the weights."""

    def update_weights(self) -> None:
        """Update the weights, and their average."""
        super().update_weights()
        with torch.no_grad():
            for mean, own in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(own, self.share)


def averaging(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    made = engine(workload, cell, workload.model(cell), Averaging)
    made.average, made.share = copy.deepcopy(made.model), 0.1 if planted else 0.01
    return made


@pytest.mark.parametrize(
    ("layout", "kind", "name"),
    [
        (conjugated, "buffer", "minus"),
        (quantized, "buffer.scale", "table"),
        (extra, "extra_state", "extra state.count of counting"),
        (named_state, "extra_state", "global.seen of the optimizer"),
        (remembering, "state", "losses.0"),
        (two_optimizers, "hyper", None),
        (averaging, "average", None),
    ],
)
def test_it_is_compared(parity_there: ParityIn, layout: Any, kind: str, name: str | None) -> None:
    """A difference in it is the first one."""
    found = verdict(parity_there, layout)
    assert found.outcome == "fail", found
    assert found.divergence is not None
    assert found.divergence.kind == kind
    assert name in (None, found.divergence.name)


def losing(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    """Build an engine whose load forgets what a module counts."""

    class Losing(Engine):
        def update_weights(self) -> None:
            super().update_weights()
            self.model.counting.count += 1

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            if planted:
                self.model.counting.count = 0

    model = workload.model(cell)
    model.counting = Counting(1)
    return engine(workload, cell, model, Losing)


def test_a_load_must_restore_it(parity_there: ParityIn) -> None:
    """All state is as it was saved."""
    found = verdict(parity_there, losing, CELL.replace(sequence="train1-save-load-train1"))
    assert found.outcome == "fail"
    assert "extra_state" in found.reason


def test_an_option_that_cannot_be_shown_is_named(parity_there: ParityIn) -> None:
    """Nobody can say whether two functions are the same."""
    found = verdict(parity_there, with_function)
    assert found.left_out is not None
    assert found.left_out["hyper rule"] == "candidate: SGD has a function there"


def with_function(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    made = engine(workload, cell, workload.model(cell))
    made.optimizer.param_groups[0]["rule"] = verdict
    return made


class Alone(Engine):
    """Saves an average, and nothing of what an engine saves by itself."""

    def state_beside_weights(self) -> dict[str, Any]:
        """Return what is saved beside weights."""
        return {"average": torch.ones(3)}


def alone(workload: Workload, cell: Cell, planted: bool = False) -> Engine:
    return engine(workload, cell, workload.model(cell), Alone)


def test_state_beside_weights_is_added_to_that_of_an_engine(parity_there: ParityIn) -> None:
    """Without the generators, a run that goes on would draw other numbers; the advice says how."""
    words = (
        "expected random generators in what state_beside_weights returns but got average of Alone; "
        "return super().state_beside_weights() | {...}"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        verdict(parity_there, alone)
