"""A loop that a recorder cannot follow ends soon, and the error says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import unchanged
from checked import Recorded
from torch import nn

STEPS = 3


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for own in model.parameters():
            own -= 0.1 * own.grad
            own.grad = None


def by_data(model: nn.Module) -> None:
    for own in model.parameters():
        own.data.add_(own.grad, alpha=-0.1)
        own.grad = None


def replaced(model: nn.Module) -> None:
    for module in model.modules():
        for name, own in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter((own - 0.1 * own.grad).detach()))


def by_hand(update: Callable[[nn.Module], None], made: list[int]) -> Callable[..., None]:
    """Make a script that updates its weights without an optimizer."""

    def script(cell: Any, record: Any) -> None:
        model = unchanged.Net()
        with record():
            for _ in range(400):
                model(next(unchanged.batches())[0]).square().mean().backward()
                update(model)
                made.append(1)

    return script


@pytest.mark.parametrize("update", [in_place, by_data, replaced])
def test_an_update_by_hand_ends_after_the_steps_that_were_asked_for(
    recorded: Recorded, update: Callable[[nn.Module], None]
) -> None:
    """It would run to its end, and nothing would be recorded."""
    made: list[int] = []
    words = r"and no step; put an update that is made by hand into the step\(\) of a torch\.optim"
    with pytest.raises(RuntimeError, match=words):
        recorded(by_hand(update, made), steps=STEPS)
    assert len(made) == STEPS + 1


def test_weights_that_rest_between_many_backwards_are_no_update_by_hand(
    recorded: Recorded,
) -> None:
    """Gradients may be accumulated over more backwards than there are steps."""

    def accumulating(cell: Any, record: Any) -> None:
        with record():
            unchanged.run(unchanged.accumulating(unchanged.Net(), 9, accumulated=40))

    assert recorded(accumulating).moments[-1].step == 2


def nothing(rank: int) -> None:
    """Would train."""


def spawning(cell: Any, record: Any) -> None:
    """Start the processes that train."""
    with record():
        torch.multiprocessing.spawn(nothing, nprocs=2)
        raise AssertionError("the processes have run to their end")


def test_a_script_that_spawns_its_processes_is_refused_before_it_does(recorded: Recorded) -> None:
    """What they train is not recorded."""
    with pytest.raises(RuntimeError, match=r"starts processes with torch\.multiproc.*torchrun"):
        recorded(spawning)


def test_what_the_recorder_keeps_is_no_copy_of_the_loop(recorded: Recorded) -> None:
    """Of two weights, it has kept all that it needs to see an update by hand."""

    def loop(cell: Any, record: Any) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            while True:
                model(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    assert not [name for kind, name, _ in recorded(loop).starts() if kind == "average"]
