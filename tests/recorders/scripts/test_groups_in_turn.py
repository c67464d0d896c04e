"""An optimizer that is given one group after the other makes one step of them all."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import unchanged
from checked import ParityIn, Recorded, failed, named
from torch import nn

from pytest_precision import Cell, script


def in_turn(optimizer: Any, parts: Any) -> None:
    """Update one group after the other, as DeepSpeed's ZeRO 1 and 2."""
    groups = optimizer.param_groups
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step()
    optimizer.param_groups = groups


def taken_out(optimizer: Any, parts: Any) -> None:
    """Let groups have their parameters for their update alone, as ZeRO 3."""
    for group in optimizer.param_groups:
        group["params"] = []
    for group, part in zip(optimizer.param_groups, parts, strict=True):
        group["params"] = part
        optimizer.step()
        group["params"] = []


def at_once(optimizer: Any, parts: Any) -> None:
    """Update all groups in one call."""
    optimizer.step()


def first_only(optimizer: Any, parts: Any) -> None:
    """Forget all groups but the first."""
    groups = optimizer.param_groups
    optimizer.param_groups = groups[:1]
    optimizer.step()
    optimizer.param_groups = groups


@script
def adapted(cell: Cell, record: unchanged.Record, given: bool) -> None:
    """Train the last layer alone, as adapters are trained; with `given`, the rest is in a group."""
    model = unchanged.Net()
    frozen = [*model.parameters()][:2]
    for parameter in frozen:
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": frozen * given}, {"params": trained, "lr": 0.01}])
    with record():
        for inputs, targets in unchanged.batches():
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_whether_frozen_weights_are_in_a_group_says_nothing(parity_shared: ParityIn) -> None:
    """The optimizer leaves them as they are."""
    parity = parity_shared(Cell(sequence="train3"))
    parity.check(partial(adapted, given=True), partial(adapted, given=False))


@script
def loop(cell: Cell, record: unchanged.Record, update: Any, copied: bool = False) -> None:
    """Train with two groups; with `copied`, the optimizer has copies that no module holds."""
    model = unchanged.Net()
    held = [nn.Parameter(p.detach().clone()) if copied else p for p in model.parameters()]
    parts = [held[:1], held[1:]]
    groups = [{"params": part, "lr": 0.01 * n} for n, part in enumerate(parts, 1)]
    optimizer = torch.optim.AdamW(groups)
    with record():
        for inputs, targets in unchanged.batches():
            nn.functional.mse_loss(model(inputs), targets).backward()
            for own, copy in zip(model.parameters(), held, strict=True):
                copy.grad = own.grad
            update(optimizer, parts)
            model.zero_grad()


@pytest.mark.parametrize("update", [in_turn, taken_out])
def test_groups_in_turn_agree_with_all_at_once(parity_shared: ParityIn, update: Any) -> None:
    """State, rates, counters and gradients: one step has as many updates as there are groups."""
    parity = parity_shared(Cell(sequence="train3"))
    parity.check(partial(loop, update=update), partial(loop, update=at_once))


def test_a_group_that_is_forgotten_is_found(parity_shared: ParityIn) -> None:
    """It is no part of the step, and does not move."""
    parity = parity_shared(Cell(sequence="train3"))
    found = failed(parity, partial(loop, update=first_only), partial(loop, update=at_once))
    assert "missing" in found.reason or found.divergence is not None


@pytest.mark.parametrize("update", [in_turn, taken_out])
def test_what_has_no_name_is_told_apart_by_its_place(recorded: Recorded, update: Any) -> None:
    """The groups are counted over all updates of a step."""
    trace = recorded(partial(loop, update=update, copied=True))
    places = [f"param_groups.{g}.params.{p}" for g, p in [(0, 0), *((1, p) for p in range(5))]]
    for step in (1, 2):
        for kind in ("final_grad", "master", "exp_avg"):
            assert sorted(named(trace, kind, step)) == sorted(places), (step, kind)
