"""Operators without a deterministic algorithm: refused, or allowed by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, layouts, workloads

ParityIn = Callable[[Cell], Parity]


def puts(workload: Workload, cell: Cell) -> Engine:
    """Return an engine whose layout calls an operator that has only this algorithm on a CPU."""
    torch.zeros(2).put_(torch.tensor([0, 1]), torch.ones(2))
    return layouts.adamw(workload, cell)


def test_an_operator_without_a_deterministic_algorithm_is_refused(parity_in: ParityIn) -> None:
    """Unless the test says otherwise."""
    with pytest.raises(ParityError, match="does not have a deterministic implementation"):
        parity_in(Cell()).check(puts, layouts.adamw, workload=workloads.mlp)


def test_an_allowed_one_is_named_by_the_verdict(parity_in: ParityIn) -> None:
    """A pass says less where the bits of a run may be chance."""
    parity = parity_in(Cell())
    parity.settings = replace(parity.settings, deterministic="warn")
    verdict = parity.check(puts, layouts.adamw, workload=workloads.mlp)
    assert verdict.outcome == "pass"
    assert "deterministic algorithms: only warned about" in verdict.unexercised
    environment = verdict.environment["candidate"]
    assert environment["deterministic"] == "warn only"
