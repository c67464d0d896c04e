"""Loops of one's own: what they report is compared, and what they leave out is said."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    layouts,
    unchecked,
    workloads,
)
from pytest_precision.trace.digests import elements

ParityIn = Callable[[Cell], Parity]


class OwnLoop(Engine):
    """A loop as a user has one."""

    def forward_backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        for number, microbatch in self.my_microbatches(step):
            total, _ = self.workload.loss(self.forward_model, microbatch)
            self.one(number, total / self.step_tokens)

    def one(self, number: int, loss: torch.Tensor) -> None:
        self.report_loss(number, loss)
        (loss * self.loss_factor).backward()


class Unreported(OwnLoop):
    """Keeps its losses to itself."""

    def one(self, number: int, loss: torch.Tensor) -> None:
        (loss * self.loss_factor).backward()

    def evaluate(self) -> None:
        pass


class Unscaled(OwnLoop):
    """Knows of no factor, so that its loss cannot be made to overflow."""

    def one(self, number: int, loss: torch.Tensor) -> None:
        self.report_loss(number, loss)
        loss.backward()


class HidesGradients(Unscaled):
    """What it reduces is out of reach, so that only its loss could overflow."""

    unobservable: ClassVar = {"grad": "kept to itself"}


class AveragingDdp(Engine):
    """The pattern of a wrapper in the docstring of `Engine`."""

    unobservable: ClassVar = {"grad": "DDP reduces gradients inside backward"}
    needs_even_shares = True

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module, optimizer: Any) -> None:
        wrapper = DistributedDataParallel(model)
        factor = cell.world_size
        options = {"forward_model": wrapper, "grad_factor": factor}
        super().__init__(workload, cell, model, optimizer, **options)

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.forward_model.no_sync()

    def reduce_grads(self) -> None:
        pass


def own_loop(workload: Workload, cell: Cell, *, kind: type[Engine]) -> Engine:
    model = workload.model(cell)
    return kind(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def elements_of_half_a_model() -> int:
    """On a rank that holds one of two layers: what it counts."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 5, bias=False))
    stage = model[dist.get_rank() : dist.get_rank() + 1]
    return elements(stage.named_parameters())


def test_a_model_that_ranks_share_is_counted_whole(run_on_ranks: Callable[..., list[Any]]) -> None:
    """Or one side would be kept as digests and the other one as values."""
    assert run_on_ranks(2, elements_of_half_a_model) == [3 * 4 + 4 * 5] * 2


def test_a_loop_of_ones_own_is_a_side_like_any_other(parity_in: ParityIn) -> None:
    """The weights that it used are those of each step, and its losses are compared."""
    cell = Cell(sequence="train1-eval-skip-train1-save-load-train1", world_size=2)
    verdict = parity_in(cell).check(
        partial(own_loop, kind=OwnLoop), layouts.adamw, workload=workloads.mlp
    )
    assert verdict.left_out == {}


def test_a_wrapper_that_averages_is_undone_by_a_factor(parity_in: ParityIn) -> None:
    """Ranks are a power of two here, so that nothing is rounded."""
    candidate = partial(own_loop, kind=AveragingDdp)
    parity_in(Cell(sequence="train2-skip", world_size=2)).check(
        candidate, layouts.adamw, workload=workloads.mlp
    )


def test_a_loop_without_losses_needs_the_tests_leave(parity_in: ParityIn) -> None:
    """And then nothing else asks for them, the guards included."""
    candidate = partial(own_loop, kind=Unreported)
    parity = parity_in(Cell(sequence="train1-eval-train1"))
    reference_cell = parity.cell.replace(sequence="train2")
    with pytest.raises(ParityError, match="no loss was observed in the candidate"):
        parity.check(candidate, candidate, workload=workloads.mlp, reference_cell=reference_cell)
    own = {"loss": unchecked(reason="this trainer prints them")}
    parity.check(
        candidate,
        candidate,
        workload=workloads.mlp,
        reference_cell=reference_cell,
        criterion=own,
    )


def test_gradients_overflow_in_a_loop_without_a_factor(parity_in: ParityIn) -> None:
    """A loop that shows its gradients needs to do nothing for it."""
    parity_in(Cell(sequence="train1-skip-train1")).check(
        partial(own_loop, kind=Unscaled), layouts.adamw, workload=workloads.mlp
    )


def test_a_loop_that_cannot_overflow_is_told(parity_in: ParityIn) -> None:
    """Its step was made, so that a comparison would call a sound loop wrong."""
    words = r"the candidate failed: .*expected the gradients of a skipped step to overflow but got"
    with pytest.raises(ParityError, match=words) as failure:
        parity_in(Cell(sequence="train1-skip-train1")).check(
            partial(own_loop, kind=HidesGradients), layouts.adamw, workload=workloads.mlp
        )
    assert "multiply the loss by self.loss_factor" in failure.value.verdict.reason
