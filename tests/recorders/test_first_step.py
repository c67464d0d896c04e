"""The first step of a layout stands beside the same step in fp64, from the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.probes.accuracy.beside_fp64 import AS_ACCURATE, Accuracy
from pytest_precision.probes.accuracy.first_step import record_first_step
from pytest_precision.probes.accuracy.step_accuracy import StepAccuracy
from pytest_precision.probes.gradients.fp64 import computing_in_fp64
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.trace.segment_folders import folder_of


def in_halves(workload: Any, cell: Cell) -> Engine:
    """Sum the products of each linear layer in two halves."""
    return _hooked(workload, cell, _summed_in_halves)


def _hooked(workload: Any, cell: Cell, hook: Any) -> Engine:
    engine = layouts.adamw(workload, cell)
    for module in engine.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(hook)
    return engine


def _summed_in_halves(module: Any, args: Any, output: Tensor) -> Tensor:
    half, weight = module.in_features // 2, module.weight
    x = args[0].to(weight.dtype)
    first, second = x[..., :half] @ weight[:, :half].T, x[..., half:] @ weight[:, half:].T
    return first + second if module.bias is None else first + second + module.bias


def coarse(workload: Any, cell: Cell) -> Engine:
    """Round what each linear layer returns to eight bits fewer than its dtype has."""
    return _hooked(workload, cell, _rounded)


def _rounded(module: Any, args: Any, output: Tensor) -> Tensor:
    fewer = torch.bfloat16 if output.dtype == torch.float32 else torch.float8_e4m3fn
    return output + (output.to(fewer).to(output) - output).detach()


class RoundsInside(workloads.mlp):
    """Its loss is rounded on its way, which no exact step may be."""

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        """Compute the loss of an output in bf16."""
        return super().loss(lambda *args: model(*args).bfloat16().float(), microbatch)  # type: ignore[arg-type]


def first_step(layout: Any, workload: Any, cell: Cell, folder: Path) -> StepAccuracy:
    """Record the first step of a layout, and read it."""
    folder.mkdir()
    record_first_step(LayoutJob(layout, layout, workload, cell, folder, cell.segments[0]))
    return StepAccuracy.read(folder)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "workload", [workloads.mlp, pytest.param(workloads.gpt, marks=pytest.mark.nightly)]
)
def test_a_coarser_kernel_is_told_from_a_sum_in_another_order(
    one_rank: None, tmp_path: Path, precision: str, workload: Any
) -> None:
    """By the distance of gradients from the exact ones, which are the same for all three."""
    cell = Cell(precision=precision, sequence="train2")
    usual, reordered, rounded = (
        first_step(layout, workload, cell, tmp_path / layout.__name__)
        for layout in (layouts.adamw, in_halves, coarse)
    )
    assert not usual.silent
    for kind, limit in AS_ACCURATE.items():
        same = Accuracy.of(reordered.tensors[kind], usual.tensors[kind])
        assert same.exact_moved == 0
        assert same.here != same.there
        assert same.ratio is not None
        assert 1 / limit < same.ratio < limit
    worse = Accuracy.of(rounded.tensors["gradients"], usual.tensors["gradients"])
    assert worse.ratio is not None
    assert worse.ratio > AS_ACCURATE["gradients"]
    assert "The new ones are less accurate" in worse.words("gradients", "then")


def test_the_first_step_may_come_after_a_restart(one_rank: None, tmp_path: Path) -> None:
    """What it makes lies with the segment that trains it, where it is looked for."""
    cell = Cell(sequence="save-restart-train1")
    for segment in cell.segments:
        adamw = layouts.adamw
        record_first_step(LayoutJob(adamw, adamw, workloads.mlp, cell, tmp_path, segment))
    assert StepAccuracy.read(folder_of(tmp_path, 1)).tensors.keys() == AS_ACCURATE.keys()


def test_an_exact_step_is_near_fp32(one_rank: None, tmp_path: Path) -> None:
    """Gradients by a few unit roundoffs; it is no other data, and no other rate, clip or rule."""
    step = first_step(layouts.adamw, workloads.mlp, Cell(sequence="train1"), tmp_path / "a")
    for kind, near in (("gradients", 1e-6), ("updates", 1e-5)):
        own = Accuracy.of(step.tensors[kind], step.tensors[kind])
        assert 0 < own.here < near, kind


def test_what_a_workload_rounds_is_not_rounded_in_the_exact_step(
    one_rank: None, tmp_path: Path
) -> None:
    """A workload that computes in bf16 inside has the exact step of the one that does not."""
    cell = Cell(sequence="train1")
    plain = first_step(layouts.adamw, workloads.mlp, cell, tmp_path / "plain")
    inside = first_step(layouts.adamw, RoundsInside, cell, tmp_path / "inside")
    found = Accuracy.of(inside.tensors["gradients"], plain.tensors["gradients"])
    assert found.exact_moved == 0
    assert found.ratio is not None
    assert found.ratio > 100


def test_in_fp64_draws_the_same_random_numbers() -> None:
    """What is drawn has the bits of its own dtype; what is computed from it has those of fp64."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with computing_in_fp64():
        assert torch.equal(torch.rand(3, dtype=torch.float32).float(), expected.double())
        assert (torch.ones(2, dtype=torch.float64) + expected[:2]).dtype == torch.float64
        assert expected.bfloat16().dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


class Unruly(workloads.mlp):
    """Says nothing about its optimizer."""

    optimizer_rule = None


class Ranked(workloads.mlp):
    """Cannot be computed in fp64."""

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        """Refuse an output in fp64."""
        total, count = super().loss(model, microbatch)
        if total.dtype == torch.float64:
            raise RuntimeError("no fp64 here")
        return total, count


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (Unruly, {"updates": "Unruly declares no optimizer_rule"}),
        (
            Ranked,
            dict.fromkeys(AS_ACCURATE, "the step in fp64 raised RuntimeError: no fp64 here"),
        ),
    ],
)
def test_what_has_no_exact_step_says_why(
    one_rank: None, tmp_path: Path, workload: type[Workload], said: dict[str, str]
) -> None:
    """And the rest of the step is held to it all the same."""
    step = first_step(layouts.adamw, workload, Cell(sequence="train1"), tmp_path / "a")
    assert step.silent == said
    assert bool(step.tensors.get("gradients")) == ("gradients" not in said)
