"""AnyPrecisionAdamW: which updates arrive, and which are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_precision.optim import AnyPrecisionAdamW

AGREES = 1e-5
"""Largest difference from torch's AdamW over 100 steps, relative to the largest total update.

Measured 6.7e-6 for weights of a standard deviation of 0.02; see the same bound of FusedAdam.
"""

FP32 = {
    "momentum_dtype": torch.float32,
    "variance_dtype": torch.float32,
    "compensation_buffer_dtype": torch.float32,
}


def parameter(*shape: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    generator = torch.Generator().manual_seed(0)
    return nn.Parameter((torch.randn(shape, generator=generator) * 0.02).to(dtype))


def train(optimizer: torch.optim.Optimizer, steps: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for param in optimizer.param_groups[0]["params"]:
            gradient = torch.randn(param.shape, generator=generator) * scale
            param.grad = gradient.to(param.dtype)
        optimizer.step()


@pytest.mark.parametrize("kahan", [True, False])
def test_fp32_agrees_with_torch_adamw(kahan: bool) -> None:
    """With every buffer in fp32 it is AdamW, compensated or not."""
    ours, theirs = (parameter(2000, dtype=torch.float32) for _ in range(2))
    start = ours.detach().clone()
    optimizer = AnyPrecisionAdamW([ours], use_kahan_summation=kahan, **FP32)
    train(optimizer, 100)
    train(torch.optim.AdamW([theirs]), 100)
    update = (theirs - start).abs().max()
    assert 0 < (optimizer.master(ours) - theirs).abs().max() <= AGREES * update


def test_the_bias_correction_is_computed_in_fp32() -> None:
    """1 / (1 - 0.9f) is 9.9999976: the step counter is an fp32 tensor."""
    param = nn.Parameter(torch.zeros(1))
    options = {"lr": 1.0, "eps": 0.0, "betas": (0.9, 0.0), "use_kahan_summation": False}
    optimizer = AnyPrecisionAdamW([param], **options, **FP32)
    param.grad = torch.ones(1)
    optimizer.step()
    correction = np.float32(1) - np.float32(0.9)
    assert param.item() == -(np.float32(1) / correction) * np.float32(0.1)


def test_compensation_keeps_updates_that_bf16_would_lose() -> None:
    """Updates of 1e-6 of a weight: the parameter stays, the effective weight moves."""
    param = nn.Parameter(torch.ones(50, dtype=torch.bfloat16))
    optimizer = AnyPrecisionAdamW([param], lr=1e-6)
    for step in range(1, 5):
        param.grad = torch.ones_like(param)
        optimizer.step()
        assert torch.equal(param, torch.ones(50, dtype=torch.bfloat16))
        torch.testing.assert_close(
            1 - optimizer.master(param).double(),
            torch.full((50,), step * 1e-6).double(),
            rtol=0.02,  # bf16 has a relative rounding error of 2**-8, made twice a step here
            atol=0,
        )


def test_without_compensation_small_updates_are_lost() -> None:
    """What the effective weight says as well: it is the parameter."""
    param = nn.Parameter(torch.ones(50, dtype=torch.bfloat16))
    optimizer = AnyPrecisionAdamW([param], lr=1e-6, use_kahan_summation=False)
    train(optimizer, 4)
    assert "compensation" not in optimizer.state[param]
    assert torch.equal(optimizer.master(param), torch.ones(50))


def test_the_master_is_the_parameter_with_its_compensation() -> None:
    """Summed in fp32; before the first step it is the parameter."""
    param = parameter(50)
    optimizer = AnyPrecisionAdamW([param])
    assert torch.equal(optimizer.master(param), param.float())
    train(optimizer, 3)
    compensation = optimizer.state[param]["compensation"]
    assert compensation.any()
    assert torch.equal(optimizer.master(param), param.float() + compensation.float())


@pytest.mark.parametrize(("decay", "moves"), [(2.0**-9, False), (2.0**-7, True)])
def test_weight_decay_below_half_an_ulp_does_nothing(decay: float, moves: bool) -> None:
    """`1 - lr * weight_decay` multiplies the bf16 parameter, compensated or not."""
    param = nn.Parameter(torch.full((9,), 1.25, dtype=torch.bfloat16))
    optimizer = AnyPrecisionAdamW([param], lr=0.5, weight_decay=2 * decay)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    assert bool((param != 1.25).all()) is moves


def test_a_bf16_variance_does_not_decrease() -> None:
    """With beta2 = 0.999: 0.1 % is less than half a unit in the last place of bf16."""
    variances = {}
    for dtype in (torch.bfloat16, torch.float32):
        param = parameter(200)
        optimizer = AnyPrecisionAdamW([param], variance_dtype=dtype)
        train(optimizer, 5)
        before = optimizer.state[param]["exp_avg_sq"].clone()
        train(optimizer, 50, scale=1e-3)
        variances[dtype] = (optimizer.state[param]["exp_avg_sq"] < before).float().mean().item()
    assert variances == {torch.bfloat16: 0.0, torch.float32: 1.0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_buffers_have_the_dtypes_that_were_asked_for(dtype: torch.dtype) -> None:
    """Each its own, after a step, too."""
    for name, key in (
        ("momentum_dtype", "exp_avg"),
        ("variance_dtype", "exp_avg_sq"),
        ("compensation_buffer_dtype", "compensation"),
    ):
        param = parameter(5)
        optimizer = AnyPrecisionAdamW([param], **{name: dtype})
        train(optimizer, 2)
        dtypes = {key: value.dtype for key, value in optimizer.state[param].items()}
        assert dtypes == optimizer.state_dtypes(param)
        assert dtypes[key] == dtype


def test_a_group_has_options_of_its_own() -> None:
    """Compensation for one group only."""
    first, second = parameter(3), parameter(3)
    groups = [{"params": [first]}, {"params": [second], "use_kahan_summation": False}]
    optimizer = AnyPrecisionAdamW(groups)
    first.grad = second.grad = torch.ones(3, dtype=torch.bfloat16)
    optimizer.step()
    assert "compensation" in optimizer.state[first]
    assert "compensation" not in optimizer.state[second]


def test_nothing_to_update_is_no_error() -> None:
    """An empty group, a tensor of no elements, a parameter without a gradient."""
    empty, idle = parameter(0, 3), parameter(3)
    optimizer = AnyPrecisionAdamW([{"params": []}, {"params": [empty, idle]}])
    empty.grad = torch.zeros_like(empty)
    optimizer.step()
    assert torch.equal(idle, parameter(3))
    assert optimizer.master(empty).shape == (0, 3)


def test_a_closure_computes_the_gradients_of_the_step() -> None:
    """Called with gradients enabled; its loss is returned."""
    param = parameter(3)
    optimizer = AnyPrecisionAdamW([param])

    def closure() -> Tensor:
        loss = param.float().square().sum()
        loss.backward()
        return loss

    expected = param.float().square().sum().item()
    assert optimizer.step(closure).item() == expected
    assert optimizer.state[param]["step"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, r"expected lr >= 0 but got lr=-1\.0 \(float\)"),
        ({"betas": (-0.1, 0.9)}, "expected two betas"),
        ({"momentum_dtype": torch.float16}, "expected momentum_dtype of torch.bfloat16, torch.fl"),
        ({"variance_dtype": "bfloat16"}, r"but got variance_dtype='bfloat16' \(str\)"),
        ({"compensation_buffer_dtype": torch.int16}, "expected compensation_buffer_dtype of"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """With what was expected and what came."""
    with pytest.raises(ValueError, match=message):
        AnyPrecisionAdamW([parameter(2)], **options)


def test_sparse_gradients_are_refused() -> None:
    """With the layout that came."""
    param = parameter(2)
    param.grad = torch.ones(2, dtype=torch.bfloat16).to_sparse()
    with pytest.raises(ValueError, match=r"a dense gradient but got grad\.layout=torch\.sparse"):
        AnyPrecisionAdamW([param]).step()


def test_a_refused_group_is_not_added() -> None:
    """Nor stays a dtype that no buffer can have."""
    optimizer = AnyPrecisionAdamW([parameter(2)])
    with pytest.raises(ValueError, match=r"but got variance_dtype=torch\.float16"):
        optimizer.add_param_group({"params": [parameter(3)], "variance_dtype": torch.float16})
    assert len(optimizer.param_groups) == 1


def test_the_step_counter_is_on_the_cpu() -> None:
    """Whatever the default device is, as torch's own counters are."""
    param = parameter(3)
    param.grad = torch.ones_like(param)
    optimizer = AnyPrecisionAdamW([param])
    with torch.device("meta"):
        optimizer.step()
    assert optimizer.state[param]["step"].device.type == "cpu"
