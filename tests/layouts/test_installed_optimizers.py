"""The frameworks' own optimizers, where they are installed, against torch's and this package's.

torchao's run eagerly: compiled, each would take seconds for its first step and give the same bits.
DeepSpeed's CPU Adam is an extension that the first test compiles for a minute, so that it is
compared only where there is a compiler.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from same_gradients import SAME_MATHEMATICS, Layout, update_error

from pytest_precision import Cell, Engine, Workload, layouts

FP32 = Cell("fp32", "fp32")

ours = pytest.mark.parametrize("reference", [layouts.adamw, layouts.fused_adam])
pytestmark = pytest.mark.usefixtures("one_rank")


class Eager(Engine):
    """For an optimizer that compiles its step."""

    def update_weights(self) -> None:
        with torch.compiler.set_stance("force_eager"):
            super().update_weights()


def torchao_adamw(workload: Workload, cell: Cell) -> Engine:
    """AdamW in fp32 arithmetic, with state in the dtype of the parameters."""
    adam = pytest.importorskip("torchao.optim.adam")
    model = workload.model(cell)
    return Eager(workload, cell, model, adam._AdamW(workload.groups(model)))


def torchao_adamw_8bit(workload: Workload, cell: Cell) -> Engine:
    """The same with moments in 8 bits and a scale for every 256 of them."""
    optim = pytest.importorskip("torchao.optim")
    model = workload.model(cell)
    return Eager(workload, cell, model, optim.AdamW8bit(workload.groups(model)))


@ours
def test_torchao_adamw_is_the_same_mathematics(reference: Layout) -> None:
    """In another order of operations, whose rounding the bound is for."""
    assert update_error(torchao_adamw, reference, 100, FP32) <= SAME_MATHEMATICS


@ours
def test_torchao_quantizes_moments_after_it_has_used_them(reference: Layout) -> None:
    """So that 8 bits move the weights from the second step on, and then beyond the bound."""
    assert update_error(torchao_adamw_8bit, reference, 1, FP32) <= SAME_MATHEMATICS
    assert update_error(torchao_adamw_8bit, reference, 2, FP32) > SAME_MATHEMATICS


def deepspeed_cpu_adam(workload: Workload, cell: Cell, **options: bool) -> Engine:
    """AdamW in C++ for CPUs."""
    pytest.importorskip("deepspeed")
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        pytest.skip("DeepSpeed's CPU Adam is compiled when it is first used, by c++ and ninja")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    model = workload.model(cell)
    return Engine(workload, cell, model, DeepSpeedCPUAdam(workload.groups(model), **options))


def deepspeed_without_correction(workload: Workload, cell: Cell) -> Engine:
    """The control: moments are not corrected for their start at zero."""
    return deepspeed_cpu_adam(workload, cell, bias_correction=False)


@ours
def test_deepspeed_cpu_adam_is_the_same_mathematics(reference: Layout) -> None:
    """In another order of operations, whose rounding the bound is for."""
    assert update_error(deepspeed_cpu_adam, reference, 100, FP32) <= SAME_MATHEMATICS
    assert update_error(deepspeed_without_correction, reference, 100, FP32) > SAME_MATHEMATICS
