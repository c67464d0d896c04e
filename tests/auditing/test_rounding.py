"""The estimate of lost updates is what a step of the real optimizer loses."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.auditing.checks.updates import (
    SAMPLED_ELEMENTS,
    lost_share,
    lost_together,
    peak_rate,
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [2e-5, 1e-4, 1e-3])
def test_it_is_what_the_first_step_of_adam_loses(dtype: torch.dtype, rate: float) -> None:
    """Its update is the rate, in either direction."""
    torch.manual_seed(0)
    parameter = torch.nn.Parameter((torch.randn(40_000) / 30).to(dtype))
    before, (estimate, size) = parameter.detach().clone(), lost_share(parameter, rate)
    optimizer = torch.optim.Adam([parameter], lr=rate, eps=1e-30 if dtype.itemsize > 2 else 1e-6)
    parameter.grad = torch.randn(40_000).sign().to(dtype)
    optimizer.step()
    assert size == 40_000
    assert estimate == pytest.approx(float((parameter == before).double().mean()), abs=0.01)
    assert estimate < 1


def test_the_threshold_is_half_a_unit_in_the_last_place() -> None:
    """Of bf16 that is 2^(e-8), and half as much below a power of two."""
    half = 2.0**-8
    assert lost_share(torch.tensor([1.5]).bfloat16(), half * 0.99)[0] == 1
    assert lost_share(torch.tensor([1.5]).bfloat16(), half * 1.01)[0] == 0
    assert lost_share(torch.tensor([1.0]).bfloat16(), half * 0.99)[0] == 0.5
    assert lost_share(torch.tensor([1.0]).bfloat16(), half / 2 * 0.99)[0] == 1


def test_fp32_loses_nothing_there() -> None:
    """The same values and rate."""
    assert lost_share(torch.randn(1000), 1e-5)[0] == 0


def test_large_tensors_are_sampled() -> None:
    """Evenly; the size is that of all elements."""
    halves = torch.cat(
        (torch.full((SAMPLED_ELEMENTS,), 4.0), torch.full((SAMPLED_ELEMENTS,), 1e-6))
    ).bfloat16()
    assert lost_share(halves, 1e-3) == (0.5, 2 * SAMPLED_ELEMENTS)


def test_tensors_count_by_their_sizes() -> None:
    """A rate of 0, as at the start of a warm-up, says nothing."""
    large, small = torch.full((3,), 4.0).bfloat16(), torch.full((1,), 1e-6).bfloat16()
    assert lost_together([(large, 1e-3), (small, 1e-3)]) == 0.75
    assert lost_together([(large, 0.0)]) is None


def test_the_rate_after_the_warm_up_counts() -> None:
    """A scheduler has set the first one already."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter], lr=3e-4)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=10)
    assert peak_rate(optimizer.param_groups[0]) == 3e-4
