"""A script shows tensors of its own, where it has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import unchanged
from checked import ParityIn, Recorded, failed
from test_steps import loss_of
from torch import nn
from torch.nn.utils import clip_grad_norm_

from pytest_precision import Cell, script
from pytest_precision.trace.reader import Trace

Sees = Callable[[Callable[..., None], str, nn.Module], None]


def looking(look: Sees) -> Callable[..., None]:
    """Make a script of two microbatches that calls `look` with the name of each place."""

    def loop(cell, record):  # type: ignore[no-untyped-def]
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with record():
            while True:
                for _ in range(2):
                    loss = loss_of(model)
                    look(record.see, "forward", model)
                    loss.backward()
                clip_grad_norm_(model.parameters(), 1.0)
                look(record.see, "clip", model)
                optimizer.step()
                look(record.see, "step", model)
                optimizer.zero_grad()

    return loop


def shown(trace: Trace, kind: str, step: int = 1) -> list[tuple[str, str]]:
    """List phase and name of what was seen of a kind in a step."""
    moments = [moment for moment in trace.moments if moment.step == step]
    return [(m.phase, e.name) for m in moments for e in trace.entries(m) if e.kind == kind]


def test_what_is_shown_belongs_to_the_phase_that_runs(recorded: Recorded) -> None:
    """So it is compared where it was computed; names that come again are numbered."""
    trace = recorded(looking(lambda see, place, model: see("activation", place, model.bias)))
    expected = [
        ("forward_backward", "forward"),
        ("forward_backward", "forward #2"),
        ("clip_grads", "clip"),
        ("optimizer_step", "step"),
    ]
    assert shown(trace, "activation", 1) == shown(trace, "activation", 2) == expected


def test_it_is_kept_as_it_is_there(recorded: Recorded) -> None:
    """A loop may write over a tensor right after it was shown."""

    def overwriting(see: Any, place: str, model: nn.Module) -> None:
        tensor = torch.ones(2)
        see("activation", place, tensor)
        tensor.zero_()

    trace = recorded(looking(overwriting))
    entries = [e for m in trace.moments for e in trace.entries(m) if e.kind == "activation"]
    assert {float(trace.tensor(entry).sum()) for entry in entries} == {2.0}


def test_a_kind_that_is_not_seen_otherwise_is_no_longer_unobservable(recorded: Recorded) -> None:
    """The script has shown it."""
    trace = recorded(looking(lambda see, place, model: see("grad", place, model.bias)))
    assert "grad" not in trace.header.unobservable


@script
def sharded(cell: Cell, record: Any, planted: str = "") -> None:
    """Every rank shows its half of a tensor, and a tensor of its own."""
    rank = dist.get_rank()

    def look(see: Any, place: str, model: nn.Module) -> None:
        half = torch.arange(2.0) + 2 * rank
        if planted and rank:
            half[0] = 7.0
        see("scores", "router", half, of=((2, 2), 2 * rank, 2 * rank + 2))
        see("seed", "own", torch.tensor(rank), local=True)

    looking(look)(cell, record)


def test_pieces_of_ranks_are_put_together(parity_shared: ParityIn) -> None:
    """A difference has its index in the logical tensor, in a kind of the script's own."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    found = failed(parity, partial(sharded, planted="other score"), sharded).divergence
    assert found is not None
    assert (found.kind, found.name, found.index, found.rank) == ("scores", "router", (1, 0), 1)


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        (
            torch.ones(3),
            {"of": ((4,), 0, 4)},
            r"pieces of all 3 elements of x but got 1 pieces of 4",
        ),
        (torch.ones(3), {"of": ((4,), 0, 3), "local": True}, r"of= or local=True but got both"),
        (3.0, {}, r"expected a tensor but got tensor=3.0 \(float\); wrap a number"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    recorded: Recorded, given: Any, options: dict[str, Any], error: str
) -> None:
    """The message says what is wrong with it."""
    with pytest.raises((TypeError, ValueError), match=error):
        recorded(looking(lambda see, place, model: see("scores", "x", given, **options)))


def test_nothing_is_shown_before_a_step_begins(recorded: Recorded) -> None:
    """It would belong to the step before, if there is one."""

    def early(cell, record):  # type: ignore[no-untyped-def]
        with record():
            record.see("input", "x", torch.ones(1))
            unchanged.run(unchanged.accumulating(unchanged.Net(), 2))

    with pytest.raises(RuntimeError, match=r"begins with a forward, but got record\.see"):
        recorded(early)
