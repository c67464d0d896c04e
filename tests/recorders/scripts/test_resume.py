"""A script is ended after its save, and resumed from it in new state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import resumable
import torch
import unchanged
from checked import ParityIn, Recorded, failed, named, values
from torch import nn

from pytest_precision import Cell, script

INTERRUPTED = Cell(sequence="train2-save-load-train2", world_size=2)
WHOLE = INTERRUPTED.replace(sequence="train4")


def test_a_resumed_loop_agrees_with_one_that_was_not_interrupted(parity_shared: ParityIn) -> None:
    """State, data and schedule go on as if nothing had happened."""
    parity = parity_shared(INTERRUPTED)
    verdict = parity.check(resumable.trainer, resumable.trainer, reference_cell=WHOLE)
    assert verdict.observations > 100


def test_a_loop_is_resumed_in_new_processes(parity_in: ParityIn) -> None:
    """It agrees with one that was not interrupted, and shows what it starts from."""
    cell = INTERRUPTED.replace(sequence="train2-save-restart-train2")
    verdict = parity_in(cell).check(resumable.trainer, resumable.trainer, reference_cell=WHOLE)
    assert verdict.observations > 100


def test_a_loop_that_keeps_something_in_its_processes_is_found(parity_in: ParityIn) -> None:
    """It is there after a load, and gone after a restart."""
    broken = partial(resumable.trainer, planted="position in a global")
    parity_in(INTERRUPTED).check(broken, resumable.trainer, reference_cell=WHOLE)
    cell = INTERRUPTED.replace(sequence="train2-save-restart-train2")
    verdict = failed(parity_in(cell), broken, resumable.trainer, reference_cell=WHOLE)
    assert "loss differs at step 3" in verdict.reason


def test_a_loop_that_reads_as_many_files_as_it_has_ranks_is_found(parity_shared: ParityIn) -> None:
    """On one rank more there is one too few."""
    cell = INTERRUPTED.replace(sequence="train2-save-load@3-train2")
    verdict = failed(
        parity_shared(cell), resumable.trainer, partial(resumable.trainer, planted=" ")
    )
    assert "rank 2 of 3 in resumable:trainer raised FileNotFoundError" in verdict.reason


@pytest.mark.parametrize(
    ("forgotten", "kind"),
    [
        ("model", "used_param"),
        ("optimizer", "lr"),
        pytest.param("schedule", "policy", marks=pytest.mark.nightly),
    ],
)
def test_what_is_not_loaded_is_found(parity_shared: ParityIn, forgotten: str, kind: str) -> None:
    """It has the values of a new run."""
    broken = partial(resumable.trainer, planted=forgotten)
    verdict = failed(parity_shared(INTERRUPTED), broken, resumable.trainer, reference_cell=WHOLE)
    assert verdict.divergence is not None
    assert verdict.divergence.kind == kind


def test_both_sides_may_be_interrupted(parity_shared: ParityIn) -> None:
    """Then each is held against what it has itself saved."""
    broken = partial(resumable.trainer, planted="model")
    verdict = failed(parity_shared(INTERRUPTED), broken, partial(broken, planted="model "))
    assert "load after step 2 changed master in the candidate" in verdict.reason


def test_a_loop_that_does_not_save_is_an_error(parity_shared: ParityIn) -> None:
    """There is nothing to resume from."""
    broken = partial(resumable.trainer, planted="save")
    verdict = failed(parity_shared(INTERRUPTED), broken, resumable.trainer, reference_cell=WHOLE)
    assert "a loop that saves after step 2 but got nothing in record.folder" in verdict.reason


@pytest.mark.parametrize(
    ("sequence", "advice"),
    [
        ("train1-eval-train1", "a recorder cannot make a loop do 'eval'; leave it out"),
        ("train1-save-load-train1", r"say how it is resumed, with @script\(resume=function\)"),
    ],
)
def test_a_sequence_that_no_loop_can_follow_is_refused(
    parity_shared: ParityIn, sequence: str, advice: str
) -> None:
    """Nothing is trained for it, and what is missing is named."""
    parity = parity_shared(Cell(sequence=sequence))
    verdict = failed(parity, partial(unchanged.plain, planted=""), unchanged.plain)
    assert verdict.outcome == "error"
    assert advice in verdict.reason.replace("(", r"\(").replace(")", r"\)")


@pytest.mark.parametrize(
    ("sequence", "advice"),
    [
        ("save-train1-load-train1", "put a train before each save"),
        ("train1-save-load", "put a train after each load"),
        ("train1-save-restart", "put a train after each restart"),
        ("train1-save-train1-save-train1", "leave the other saves out"),
    ],
)
def test_a_save_and_a_load_stand_between_steps(
    parity_shared: ParityIn, sequence: str, advice: str
) -> None:
    """A loop shows nothing elsewhere."""
    both = partial(resumable.trainer, planted="")
    verdict = failed(parity_shared(Cell(sequence=sequence)), both, resumable.trainer)
    assert (verdict.outcome, advice in verdict.reason) == ("error", True)


def test_state_that_a_checkpoint_makes_is_no_step(recorded: Recorded) -> None:
    """A step of the optimizer makes it, with zero gradients and a rate of zero."""

    def loop(cell: Cell, record: Any) -> None:
        from torch.distributed.checkpoint import state_dict  # here, since other loops need not wait

        with record():
            model = nn.Linear(7, 3)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
            state = state_dict.get_optimizer_state_dict(model, optimizer)
            state_dict.set_optimizer_state_dict(model, optimizer, state)
            while True:
                model(torch.ones(5, 7)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    trace = recorded(loop)
    for step in (1, 2):
        assert named(trace, "used_param", step) == ["weight", "bias"]
    assert {*values(trace, "lr", "weight")} == {0.25}


def test_an_overflow_is_skipped(parity_shared: ParityIn) -> None:
    """GradScaler leaves all state as it was, but its own."""
    parity = parity_shared(Cell(sequence="train1-skip-train2"))
    again = partial(unchanged.scaled, planted="")
    verdict = parity.check(again, unchanged.scaled)
    assert verdict.observations > 100


def test_an_overflow_that_is_not_skipped_is_found(parity_shared: ParityIn) -> None:
    """A loop without a scaler makes the update."""
    parity = parity_shared(Cell(sequence="train1-skip-train1"))
    again = partial(unchanged.plain, planted="")
    verdict = failed(parity, again, unchanged.plain)
    assert "skip after step 1 changed step in the candidate" in verdict.reason


def test_a_schedule_that_an_overflow_moves_is_found(parity_shared: ParityIn) -> None:
    """The step is done again with the rate that it had."""
    parity = parity_shared(Cell(sequence="train1-skip-train1"))
    both = partial(unchanged.scaled, planted="schedule moves")
    verdict = failed(parity, both, partial(both, planted="schedule moves "))
    assert "skip after step 1 changed lr of first.weight from" in verdict.reason


@pytest.mark.parametrize("loop", [unchanged.careful, unchanged.watchful])
def test_a_loop_that_looks_at_the_norm_or_says_so_skips_too(
    recorded: Recorded, loop: Callable[..., None]
) -> None:
    """Its next batch ends the skipped step."""
    trace = recorded(script(loop), sequence="train1-skip-train1")
    moments = [(m.operation, m.step, m.phase) for m in trace.moments if m.operation == "skip"]
    assert moments == [("skip", 1, "skip")]
    assert [*dict.fromkeys(moment.step for moment in trace.moments)] == [0, 1, 2]


def test_a_skip_that_nobody_sees_ends(recorded: Recorded) -> None:
    """The loop would go on for ever, with an overflow in each of its batches."""
    with pytest.raises(RuntimeError, match=r"65 backwards in the step .* call record.skipped\(\)"):
        recorded(script(partial(unchanged.watchful, told=False)), sequence="train1-skip-train1")


def test_a_layer_may_be_frozen_after_a_skip(recorded: Recorded) -> None:
    """SGD keeps nothing of it then, and its rate is no longer shown."""

    @script
    def freezing(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with record():
            for step in count(1):
                scaler.scale(model(torch.ones(1, 3)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                model[0].requires_grad_(step < 2)

    trace = recorded(freezing, sequence="train1-skip-train1")
    assert {*named(trace, "lr", 2)} == {"1.weight", "1.bias"}
    assert trace.header.violations == ()
