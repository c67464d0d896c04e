"""What is hooked and wrapped is as it was, however a block ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
import unchanged
from checked import Recorded, named
from torch import nn

from pytest_precision.ranks.state.before_job import BeforeJob
from pytest_precision.ranks.state.fingerprint import read_state


def fails(cell, record):  # type: ignore[no-untyped-def]
    """A loop that raises in its first step."""
    with record():
        nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
        raise KeyError("of the loop's own")


@pytest.mark.parametrize("loop", [unchanged.plain, fails])
def test_nothing_stays_behind(recorded: Recorded, loop: Callable[..., None]) -> None:
    """What finds the leaks of jobs finds none: no hook, no wrapper."""
    before, process = read_state()["hook of all"], BeforeJob()
    with suppress(KeyError):
        recorded(loop)
    assert read_state()["hook of all"] == before
    assert process.code.changes() == ()


def test_modules_keep_no_hook(recorded: Recorded) -> None:
    """A model that is trained on afterwards runs as before."""
    model = unchanged.Net()

    def loop(cell, record):  # type: ignore[no-untyped-def]
        with record(see={"grad"}):
            unchanged.run(unchanged.accumulating(model, 9))

    recorded(loop)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_function_mode_repeats_no_loss(recorded: Recorded) -> None:
    """Torch calls `Tensor.backward` once more there."""

    def loop(cell, record):  # type: ignore[no-untyped-def]
        with record(), torch.device("cpu"):
            unchanged.run(unchanged.accumulating(unchanged.Net(), 9))

    assert len(named(recorded(loop), "loss")) == unchanged.ACCUMULATED


def test_an_error_of_the_loop_is_its_own(recorded: Recorded) -> None:
    """Nothing is put in its place."""
    with pytest.raises(KeyError, match="of the loop's own"):
        recorded(fails)


def test_a_loop_that_goes_on_after_errors_ends(recorded: Recorded) -> None:
    """The end of a recording is no `Exception`."""

    def stubborn(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            while True:
                with suppress(Exception):
                    model(torch.ones(1, 2)).sum().backward()
                    optimizer.step()

    assert recorded(stubborn).moments[-1].step == 2
