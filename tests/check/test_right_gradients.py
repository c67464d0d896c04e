"""A right side is never refused by its gradients; what cannot be judged, the verdict tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import catalogue
import pytest
import torch
from jsonschema import Draft202012Validator
from torch import Tensor, nn
from variations.arithmetic import ReducesInBf16
from written import validator
from wrong_gradients import Doubling, engine_of, frozen

from pytest_precision import (
    Capture,
    Cell,
    Engine,
    Observation,
    Parity,
    ParityError,
    Workload,
    layouts,
    workloads,
)

CheckOn = Callable[..., dict[str, Any]]
ParityIn = Callable[[Cell], Parity]


class Small(workloads.mlp):
    """A perceptron that is soon trained."""

    def __init__(self) -> None:
        super().__init__(width=16, depth=2)


class Dropping(Small):
    """Draws from torch's generator in its forward, which a workload must not."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        model.head = nn.Sequential(nn.Dropout(0.2), model.head)  # type: ignore[arg-type]
        return model


class Counting(Small):
    """Divides by the number of calls so far, and so gives other gradients each time."""

    calls = 0

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        total, tokens = super().loss(model, microbatch)
        self.calls += 1
        return total / self.calls, tokens


class Tiny(Small):
    """Has losses whose gradients fp16 has no values for, unless they are scaled."""

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        total, tokens = super().loss(model, microbatch)
        return total * 2.0**-14, tokens


class Large(Small):
    """Has losses that overflow in fp16 until the scale is a sixteenth."""

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        total, tokens = super().loss(model, microbatch)
        return total * 16.0, tokens


class Batch(nn.BatchNorm1d):
    """Takes all dimensions but the last one as the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view_as(x)


class Normalised(Small):
    """Has a normalisation by the batch, whose statistics are buffers."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        assert isinstance(model.head, nn.Linear)
        model.head = nn.Sequential(Batch(model.head.in_features), model.head)  # type: ignore[arg-type]
        return model


class Centring(nn.Module):
    """Subtracts a running mean in training too, as spectral normalisation reads what it keeps."""

    mean: Tensor

    def __init__(self, width: int, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - self.mean
        if self.training:
            self.mean.lerp_(x.detach().flatten(0, -2).mean(0), self.weight)
        return centred


class Centred(Small):
    """Has a forward that reads what the forwards before it have left."""

    weight = 0.1

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        assert isinstance(model.head, nn.Linear)
        model.head = nn.Sequential(Centring(model.head.in_features, self.weight), model.head)  # type: ignore[arg-type]
        return model


class CentredSlowly(Centred):
    """Has a running mean that hardly moves within a step."""

    weight = 1e-5


class Selective(Engine):
    """Shows local gradients to those alone whom it was started for."""

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        if phase == "forward_backward" and capture is not self.capture:
            raise RuntimeError("who asks?")
        yield from super().observe(phase, capture)


class Unready(Engine):
    """Shows resident weights to those alone whom it was started for."""

    def show(
        self, kind: str, name: str, tensor: Tensor, capture: Capture, **more: bool
    ) -> Iterator[Observation]:
        if kind == "param" and capture is not self.capture:
            raise RuntimeError("who asks?")
        yield from super().show(kind, name, tensor, capture, **more)


def adamw(workload: Workload, cell: Cell) -> Engine:
    """The same layout under another name."""
    return layouts.adamw(workload, cell)


@pytest.fixture
def gradients_of(parity_by: Callable[..., Parity]) -> CheckOn:
    """What a passing check says of the candidate's gradients, in this process."""

    def check(*sides: Any, cell: Cell, workload: Any) -> dict[str, Any]:
        verdict = parity_by(cell, ranks="inline").check(*sides, workload=workload)
        assert verdict.outcome == "pass"
        assert verdict.oracle is not None
        return dict(verdict.oracle["candidate"]["gradients"])

    return check


@pytest.mark.parametrize("workload", [Dropping, Counting])
def test_a_workload_that_computes_otherwise_each_time_is_not_judged(
    gradients_of: CheckOn, workload: type[Workload]
) -> None:
    """Its gradients at the same weights are no measure of what a layout does."""
    found = gradients_of(layouts.adamw, adamw, cell=Cell(sequence="train3"), workload=workload)
    assert found == {"silent": "the workload gives other gradients at the same weights each time"}


def test_sums_over_ranks_may_be_rounded_to_bf16(parity_there: ParityIn) -> None:
    """What each rank gives and the sum of both: of these data the terms of a scale cancel."""
    sides = (partial(catalogue.planted, kind=ReducesInBf16), partial(engine_of, kind=ReducesInBf16))
    cell, workload = Cell(sequence="train", world_size=2), partial(catalogue.MLP, seed=9)
    verdict = parity_there(cell).check(*sides, workload=workload)
    assert verdict.oracle is not None
    assert verdict.oracle["candidate"]["gradients"]["judged"] > 20


def test_ranks_that_keep_what_their_own_forwards_leave_are_not_judged(
    parity_there: ParityIn,
) -> None:
    """One process cannot compute what two do that have seen other microbatches."""
    cell = Cell(sequence="train", world_size=2)
    verdict = parity_there(cell).check(layouts.adamw, adamw, workload=Centred)
    assert verdict.oracle is not None
    reason = verdict.oracle["candidate"]["gradients"]["silent"]
    assert reason.startswith("a forward reads buffers that the forwards before it have changed")


def test_what_a_wrong_rule_explains_is_wrong_whatever_forwards_leave(
    parity_there: ParityIn,
) -> None:
    """Both sides double each gradient; the report has the first one and the rule as data."""
    sides = (partial(engine_of, kind=Doubling), partial(engine_of, kind=Doubling, again=True))
    with pytest.raises(ParityError, match="it is multiplied by the ranks") as failure:
        parity_there(Cell(sequence="train", world_size=2)).check(*sides, workload=CentredSlowly)
    assert failure.value.verdict.oracle is not None
    judged = failure.value.verdict.oracle["reference"]
    found = judged["gradients"]["breach"]
    assert (found["step"], found["kind"], found["rank"]) == (1, "grad", 0)
    assert found["words"] == "it is multiplied by the ranks"
    definitions = validator().schema["$defs"]
    Draft202012Validator({"$defs": definitions, "$ref": "#/$defs/judged"}).validate(judged)


def test_a_weight_without_a_gradient_is_wrong_whatever_is_drawn(parity_there: ParityIn) -> None:
    """No random number leaves a weight without one."""
    with pytest.raises(ParityError, match="no rank has any"):
        parity_there(Cell(sequence="train3")).check(
            frozen, partial(frozen, again=True), workload=Dropping
        )


def test_one_rank_that_keeps_what_its_forwards_leave_is_judged(gradients_of: CheckOn) -> None:
    """One process computes what another one does, in the same order."""
    cell = Cell(sequence="train3")
    found = gradients_of(layouts.adamw, adamw, cell=cell, workload=Centred)
    assert found["judged"] > 20


@pytest.mark.parametrize("kind", [Selective, Unready])
def test_an_engine_that_cannot_be_looked_at_is_not_judged(
    gradients_of: CheckOn, kind: type[Engine]
) -> None:
    """What it raises then is told, and is no error of the check."""
    sides = (partial(engine_of, kind=kind), partial(engine_of, kind=kind, again=True))
    found = gradients_of(*sides, cell=Cell(sequence="train3"), workload=Small)
    assert found["silent"].startswith("its engine raised RuntimeError when it was looked at: ")


def test_gradients_that_only_a_scaler_saves_are_right(gradients_of: CheckOn) -> None:
    """The plain loop scales its losses as the side has."""
    cell = Cell("fp16", "fp32", sequence="train3")
    found = gradients_of(layouts.adamw, adamw, cell=cell, workload=Tiny)
    assert found["judged"] > 20


def test_an_overflow_is_no_wrong_gradient(gradients_of: CheckOn) -> None:
    """The steps that the scaler skips have no finite gradients, and no update to be judged."""
    cell = Cell("fp16", "fp32", sequence="train6")
    found = gradients_of(layouts.adamw, adamw, cell=cell, workload=Large)
    assert "silent" not in found


def test_statistics_of_a_batch_are_no_gradient(gradients_of: CheckOn) -> None:
    """They change in each microbatch, and what is normalised by them does not."""
    cell = Cell(sequence="train-eval-train")
    found = gradients_of(layouts.adamw, adamw, cell=cell, workload=Normalised)
    assert found["judged"] > 20
