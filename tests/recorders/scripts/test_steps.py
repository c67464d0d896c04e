"""What lies between two updates is a step, whatever a loop does there."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
import unchanged
from checked import Recorded, named, values
from torch import nn

from pytest_precision import script


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 3)).square().mean()


def test_every_microbatch_has_its_loss(recorded: Recorded) -> None:
    """Gradients that are accumulated belong to the update that follows."""
    trace = recorded(unchanged.plain)
    names = [f"microbatch{n}" for n in range(unchanged.ACCUMULATED)]
    assert [named(trace, "loss", step) for step in (1, 2)] == [names, names]


def test_an_update_that_an_overflow_skips_is_a_step(recorded: Recorded) -> None:
    """The scale is halved, and no weight has moved."""

    def overflowing(cell, record):  # type: ignore[no-untyped-def]
        unchanged.scaled(cell, record, planted="overflow")

    trace = recorded(overflowing, steps=4)
    assert len({moment.step for moment in trace.moments}) == 5
    scales = values(trace, "loss_scale", "scale")
    assert scales == [2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15]
    weights = values(trace, "param", "head.bias")
    assert [a == b for a, b in pairwise(weights)] == [False, True, False, False]


def test_optimizers_in_a_row_make_one_update(recorded: Recorded) -> None:
    """A step lasts until the next forward, so that the second optimizer belongs to it."""

    def two(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
        chain = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
        with record():
            while True:
                loss_of(model).backward()
                for optimizer in chain:
                    optimizer.step()
                    optimizer.zero_grad()

    trace = recorded(two)
    assert named(trace, "lr", 1) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert named(trace, "final_grad", 2) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_optimizers_that_step_inside_backward_are_seen(recorded: Recorded) -> None:
    """Gradients are shown as each optimizer reads them, though they are gone after it."""

    def in_backward(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        for parameter in model.parameters():
            own = torch.optim.SGD([parameter], lr=0.1)

            def step(p: torch.Tensor, own: torch.optim.Optimizer = own) -> None:
                own.step()
                own.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
        with record():
            while True:
                loss_of(model).backward()

    trace = recorded(in_backward)
    assert sorted(named(trace, "final_grad", 2)) == ["bias", "weight"]


def test_a_closure_belongs_to_its_step(recorded: Recorded) -> None:
    """Its forwards end no step, and the gradients are those of the last one."""

    def closures(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss

        with record():
            while True:
                optimizer.step(closure)

    trace = recorded(closures)
    assert len(named(trace, "loss", 1)) > 1
    assert named(trace, "final_grad", 1) == ["weight", "bias"]


class Twice(torch.optim.SGD):
    """Has another optimizer step, and computes gradients once more, within its own step."""

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        self.inner.step()
        closure()
        return super().step()


def test_an_optimizer_in_another_one_ends_no_step(recorded: Recorded) -> None:
    """What happens before the outer one has returned belongs to its update."""

    def nested(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        outer = Twice(model.parameters(), lr=0.1)
        outer.inner = torch.optim.SGD(model.parameters(), lr=0.2)
        with record():
            while True:
                loss_of(model).backward()
                outer.step(lambda: loss_of(model).backward())

    trace = recorded(nested)
    assert [len(named(trace, "loss", step)) for step in (1, 2)] == [2, 2]


def test_an_evaluation_between_two_steps_is_in_neither(recorded: Recorded) -> None:
    """A forward without gradients ends the step, and shows no weight in use."""

    def evaluating(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            while True:
                loss_of(model).backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    loss_of(model)

    trace = recorded(evaluating)
    assert named(trace, "loss", 2) == ["microbatch0"]
    assert values(trace, "used_param", "bias")[1] == values(trace, "param", "bias")[1]


def test_local_gradients_are_shown_on_demand(recorded: Recorded) -> None:
    """As each backward leaves them, so that the microbatch that goes wrong is named."""

    def asking(cell, record):  # type: ignore[no-untyped-def]
        unchanged.plain(cell, lambda: record(see={"grad"}))

    trace = recorded(asking)
    seen = [name for name in named(trace, "grad", 2) if name.startswith("head.bias")]
    assert seen == [f"head.bias after microbatch{n}" for n in range(3)]
    assert "grad" not in trace.header.unobservable


def test_a_loop_that_ends_by_itself_is_recorded_to_its_end(recorded: Recorded) -> None:
    """The last step is over when the block is."""

    def short(cell, record):  # type: ignore[no-untyped-def]
        model = unchanged.Net()
        with record():
            unchanged.run(unchanged.accumulating(model, 2))

    assert recorded(short).moments[-1].phase == "end"


@pytest.mark.parametrize("steps", [0, 1])
def test_too_few_steps_are_an_error(recorded: Recorded, steps: int) -> None:
    """A loop that ends early would agree with one that ends early."""

    def short(cell, record):  # type: ignore[no-untyped-def]
        model = unchanged.Net()
        with record():
            unchanged.run(unchanged.accumulating(model, steps))

    with pytest.raises(RuntimeError, match=f"expected a loop of 2 train steps.* but got {steps}"):
        recorded(short)


def test_a_script_without_a_block_is_an_error(recorded: Recorded) -> None:
    """Nothing was recorded, and the message says what to write."""
    with pytest.raises(
        RuntimeError, match=r"expected a block of record\(\) but got none; .*function is given"
    ):
        recorded(script(lambda cell, record: None))


def test_a_script_goes_on_after_its_steps(recorded: Recorded) -> None:
    """The block ends by itself; `finally` and what follows it run."""
    after = []

    def goes_on(cell, record):  # type: ignore[no-untyped-def]
        unchanged.plain(cell, record)
        after.append(cell)

    recorded(goes_on)
    assert len(after) == 1


def test_clipping_too_late_is_said_once(recorded: Recorded) -> None:
    """A loop that does so in one step does so in all of them."""
    late = partial(unchanged.plain, planted="clip after step")
    words = "gradients were clipped after the update of step 1"
    assert recorded(late, 3).header.violations == (words,)


@pytest.mark.parametrize("optimizer", ["lbfgs", "adamw"])
def test_what_a_closure_trains_has_its_names_in_the_first_step(
    recorded: Recorded, optimizer: str
) -> None:
    """The model is called after the optimizer has begun its step."""
    trace = recorded(partial(unchanged.closures, optimizer=optimizer))
    for kind in ("lr", "master", "param"):
        assert [sorted({*named(trace, kind, step)}) for step in (0, 1, 2)] == [
            ["bias", "weight"]
        ] * 3
    assert "unnamed" not in trace.header.unobservable
    start, *later = values(trace, "master", "bias")
    assert start not in later
