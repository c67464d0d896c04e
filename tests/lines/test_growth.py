"""Where values may differ, the operation is named at which the error grows most."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import in_this_process  # noqa: F401
import numpy as np
import pytest
import torch
import wrong_engines
from wrong_engines import WORKLOAD, of

from pytest_precision import Cell, Parity, ParityError, norm, script
from pytest_precision.probes.lines.explain.growth import error
from pytest_precision.probes.lines.log.sketches import Sketches

ParityIn = Callable[[Cell], Parity]


def test_the_module_is_named_with_the_growth(parity_here: ParityIn) -> None:
    """All later modules are off too, and what leads to them is not."""
    with pytest.raises(ParityError) as failure:
        parity_here(Cell(sequence="train2")).check(
            of(wrong_engines.OtherGelu),
            of(wrong_engines.Right),
            workload=WORKLOAD,
            criterion=norm(rel=1e-5),
        )
    found = failure.value.verdict.culprit
    assert found is not None
    assert (found.kind, found.module) == ("grown", "blocks.1"), found.text
    assert "the error grows most, ×" in found.text
    errors = {row.module: row for row in found.modules}
    assert found.operation == "aten.gelu.default"
    assert errors["blocks.0"].forward == 0
    assert (errors["blocks.1"].forward or 0) > 1e-6
    assert (errors["blocks.0"].backward or 0) > 1e-6


def test_another_kernel_is_named_with_the_growth(parity_here: ParityIn) -> None:
    """Bit for bit nothing is followed behind it, and the errors of modules say what it does."""
    with pytest.raises(ParityError) as failure:
        parity_here(Cell(sequence="train2")).check(
            of(wrong_engines.FusedGelu), of(wrong_engines.Right), workload=WORKLOAD
        )
    found = failure.value.verdict.culprit
    assert found is not None
    assert (found.kind, found.operation) == ("unknown", "wrong_engines.fused_gelu.default")
    assert "which counts as one operation" in found.text
    assert "; the error grows most, ×" in found.text, found.text
    errors = {row.module: row.forward or 0 for row in found.modules}
    assert errors["blocks.0"] == 0 < 1e-6 < errors["blocks.1"]


@script
def begun(cell: Cell, record: Callable[..., Any], weight: float = 0.1) -> None:
    """Train a layer that Adam's first update, which is as large as its weights, brings to zero."""
    with record():
        model = torch.nn.Linear(6, 3)
        model.weight.data.fill_(weight)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0)
        while True:
            model(torch.ones(4, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_what_differs_before_the_first_step_is_explained_by_no_later_operation(
    parity_here: ParityIn,
) -> None:
    """A cause comes before its effect, however far the error grows in the update."""
    cell = Cell(precision="fp32", sequence="train2")
    with pytest.raises(ParityError) as failure:
        parity_here(cell).check(partial(begun, weight=0.1 + 3e-8), begun, criterion=norm(rel=1e-7))
    verdict = failure.value.verdict
    assert "before the first step" in verdict.reason
    assert verdict.culprit is None or "AdamW" not in verdict.culprit.text, verdict.culprit


@pytest.mark.parametrize("size", [1, 15, 16, 1000, 30_000])
def test_a_sketch_tells_the_relative_error(size: int) -> None:
    """Within a factor of two, whatever the number of elements."""
    draws = torch.Generator().manual_seed(3)
    values = torch.randn(size, generator=draws)
    other = values + 1e-3 * torch.randn(size, generator=draws)
    sketches = Sketches()
    true = float((other - values).norm() / values.norm())
    sketch, of_other = sketches.of(values, "values"), sketches.of(other, "other")
    assert true / 2 < error(of_other, sketch) < true * 2
    assert error(Sketches().of(values, "again"), sketch) == 0


def test_what_has_overflowed_has_a_sketch_without_a_warning() -> None:
    """A step that a loss scaler leaves out has infinite gradients."""
    with np.errstate(all="raise"):
        assert not any(map(math.isfinite, Sketches().of(torch.tensor([torch.inf] * 99), "inf")))
