"""What both engines have, and one of them never advances, differs, as it does of scripts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, workloads

CELL = Cell(sequence="train2")


class Advancing(Engine):
    """Advances what it keeps beside its weights, unless it is dead."""

    kept, dead = "", False

    def update_weights(self) -> None:
        """Update the weights, and what is kept."""
        super().update_weights()
        if not self.dead:
            getattr(self, self.kept)()

    def policy(self) -> None:
        """Step a scheduler whose rate stays the same in these steps."""
        self.later.step()

    def attribute(self) -> None:
        """Count tokens."""
        self.seen += 8

    def host_rng(self) -> None:
        """Draw as an augmentation does."""
        random.random()

    def average(self) -> None:
        """Update an average."""
        with torch.no_grad():
            for mean, own in zip(self.mean.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(own, 0.1)


def advancing(workload: Workload, cell: Cell, kept: str, dead: bool = False) -> Engine:
    model = workload.model(cell)
    optimizer = torch.optim.SGD(workload.groups(model), momentum=0.5)
    made = Advancing(workload, cell, model, optimizer)
    made.later, made.seen, made.mean = StepLR(optimizer, 30), 0, copy.deepcopy(model)
    made.kept, made.dead = kept, dead
    return made


@pytest.mark.parametrize("kept", ["policy", "attribute", "host_rng", "average"])
def test_what_one_engine_never_advances_differs(
    parity_there: Callable[[Cell], Parity], kept: str
) -> None:
    """At the first step, whichever side it is."""
    moving, dead = partial(advancing, kept=kept), partial(advancing, kept=kept, dead=True)
    for sides in ((dead, moving), (moving, dead)):
        with pytest.raises(ParityError) as failure:
            parity_there(CELL).check(*sides, workload=workloads.mlp)
        divergence = failure.value.verdict.divergence
        assert divergence is not None
        assert (divergence.kind, divergence.step) == (kept, 1)
