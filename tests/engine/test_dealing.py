"""Which rank has which microbatch, and what a loop of one's own reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_precision import Capture, Cell, Engine, workloads

pytestmark = pytest.mark.usefixtures("one_rank")
CELL = Cell("fp32", world_size=2)


def engine_of(**options: Any) -> Engine:
    workload = workloads.mlp()
    model = workload.model(CELL)
    optimizer = torch.optim.AdamW(workload.groups(model))
    return Engine(workload, CELL, model, optimizer, **options)


@pytest.mark.parametrize(
    ("data_parallel", "dealt"),
    [(None, [0, 2, 4]), ((1, 2), [1, 3, 5]), ((0, 1), [0, 1, 2, 3, 4, 5])],
)
def test_microbatches_are_dealt_one_by_one(
    data_parallel: tuple[int, int] | None, dealt: list[int]
) -> None:
    """To data-parallel ranks, of which there may be fewer than ranks."""
    engine = engine_of(data_parallel=data_parallel)
    assert [number for number, _ in engine.my_microbatches(1)] == dealt


@pytest.mark.parametrize("given", [(2, 2), (-1, 2), (0, 3), (0, 0)])
def test_ranks_that_cannot_be_are_refused(given: tuple[int, int]) -> None:
    """A wrong pair would leave out data, or train on some of it twice."""
    with pytest.raises(ValueError, match="divides 2 ranks, and a rank below it, but got"):
        engine_of(data_parallel=given)


def test_the_divisor_is_of_all_ranks() -> None:
    """Whatever share of the tokens this rank has."""
    engine = engine_of(data_parallel=(1, 2))
    share = sum(engine.workload.tokens(microbatch) for _, microbatch in engine.my_microbatches(1))
    everything = engine.workload.microbatches(CELL, 1)
    assert share < engine.step_tokens == sum(map(engine.workload.tokens, everything))


def test_a_reported_loss_is_one_element_of_the_step() -> None:
    """In its own place, so that it does not matter which rank has computed it."""
    capture = Capture()
    engine = engine_of(data_parallel=(1, 2))
    engine.start(capture)
    for number, _ in engine.my_microbatches(1):
        engine.report_loss(number, torch.tensor(float(number)))
    seen = [one for one in engine.observe("evaluate", capture) if one.kind == "loss"]
    assert [(one.place.start, one.tensor.item()) for one in seen] == [(1, 1.0), (3, 3.0), (5, 5.0)]
    assert {one.shape for one in seen} == {(6,)}


def test_a_loss_of_no_microbatch_is_refused() -> None:
    """Of a loop that deals by itself, nobody knows how many there are."""
    words = r"expected the number of one of the step's 0 microbatches but got number=0 \(int\)"
    with pytest.raises(ValueError, match=words):
        engine_of().report_loss(0, torch.tensor(1.0))


def test_a_loss_is_multiplied_by_all_that_scales_it() -> None:
    """What averages over ranks, and what makes a skipped step overflow."""
    engine = engine_of(grad_factor=4.0)
    assert engine.loss_factor == 4.0
    engine.capture.overflow_factor = float("inf")
    assert engine.loss_factor == float("inf")


def test_local_gradients_are_shown_without_the_factor() -> None:
    """A framework that averages has them this many times too large before it does."""
    plain, averaging = engine_of(), engine_of(grad_factor=4.0)
    averaging.model.load_state_dict(plain.model.state_dict())
    shown = []
    for engine in (plain, averaging):
        engine.forward_backward(1)
        observed = engine.observe("forward_backward", engine.capture)
        shown.append({one.name: one.tensor for one in observed if one.kind == "grad"})
    assert all(torch.equal(shown[0][name], shown[1][name]) for name in shown[0])


def test_gradients_of_some_of_the_ranks_are_not_summed_over_all() -> None:
    """Only the engine's author knows which ranks share the data."""
    engine = engine_of()
    engine.cell = CELL.replace(world_size=4)
    with pytest.raises(ValueError, match=r"over all 4 ranks or one but got data_parallel=\(0, 2\)"):
        engine.reduce_grads()
