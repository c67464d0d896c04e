"""Engines that both sides may have, by name, and the layouts that make them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from catalogue import (
    Refusal,
    plant_in_both,
)
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.layouts.replicated import MasterEngine

MOE = partial(workloads.moe, experts=3, depth=1)


class Small(workloads.mlp):
    """A perceptron that is soon trained."""

    def __init__(self) -> None:
        super().__init__(width=16, depth=2)


ONE, TWO = Cell(sequence="train3"), Cell(sequence="train3", world_size=2)
HALF = Cell("fp16", "fp32", sequence="train5")
RESUMED, EVALUATED = Cell(sequence="train2-save-load-train2"), Cell(sequence="train2-eval-train2")
MASTERS = Cell("bf16", "bf16", sequence="train3")


class Entry(NamedTuple):
    """A defect of both sides.

    Attributes:
        family: its class.
        kind: the engine.
        cell: in which it must show.
        workload: of both sides.
    """

    family: str
    kind: type[Engine]
    cell: Cell
    workload: Callable[..., Workload]


ENTRIES: dict[str, Entry] = {}


def of(
    family: str, refusal: Refusal, cell: Cell = ONE, workload: Callable[..., Workload] = Small
) -> Callable[[type[Engine]], type[Engine]]:
    """Enter an engine as a defect of a class, here and into the catalogue."""

    def enter(kind: type[Engine]) -> type[Engine]:
        name = kind.__name__
        ENTRIES[name] = Entry(family, kind, cell, workload)
        plant_in_both(name, partial(planted, name=name), cell, refusal, workload=workload)
        return kind

    return enter


def with_masters(kind: type[MasterEngine], workload: Workload, cell: Cell) -> Engine:
    """An engine of fp32 masters and bf16 weights."""
    master = workload.model(cell)
    model, _ = layouts.resident(deepcopy(master), cell)
    return kind(workload, cell, model, master)


def planted(workload: Workload, cell: Cell, *, name: str) -> Engine:
    """An engine with a defect."""
    kind = ENTRIES[name].kind
    if ENTRIES[name].family == "masters":
        return with_masters(kind, workload, cell)
    model, compute = layouts.resident(workload.model(cell), cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    forward_model = layouts.compute_in(model, compute)
    return kind(workload, cell, model, optimizer, forward_model=forward_model)


def again(workload: Workload, cell: Cell, *, name: str) -> Engine:
    """The same under another name."""
    return planted(workload, cell, name=name)


class Named(Engine):
    """Has what defects need."""

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients by the names of weights."""
        named = self.model.named_parameters()
        return {name: p.grad for name, p in named if p.grad is not None}

    def of_step(self, step: int) -> list[Any]:
        """All microbatches of a step."""
        return list(self.workload.microbatches(self.cell, step))


def plain(workload: Workload, cell: Cell, *, again: bool = False) -> Engine:
    """An engine without a defect, and its twin."""
    return layouts.adamw(workload, cell)
