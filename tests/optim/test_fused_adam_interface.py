"""FusedAdam as a torch optimizer: gradients, closures, schedulers, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_precision.optim import FusedAdam


def parameter(size: int, dtype: torch.dtype = torch.bfloat16) -> nn.Parameter:
    return nn.Parameter(torch.linspace(0.5, 1, size).to(dtype))


def test_a_decoupled_gradient_has_a_dtype_of_its_own() -> None:
    """fp32 gradients of bf16 parameters: the moment sees bits that `grad` could not hold."""
    param = parameter(9)
    optimizer = FusedAdam([param], use_decoupled_grad=True)
    param.decoupled_grad = torch.full((9,), 1.0001)
    param.grad = torch.full_like(param, 100.0)
    optimizer.step()
    rest = np.float32(1) - np.float32(0.9)
    assert optimizer.state[param]["exp_avg"][0] == rest * np.float32(1.0001)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_resets_what_a_step_reads(set_to_none: bool) -> None:
    """`decoupled_grad` as well as `grad`, of parameters that have none yet, too."""
    param, untouched = parameter(2), parameter(2)
    optimizer = FusedAdam([param, untouched], use_decoupled_grad=True)
    param.decoupled_grad, param.grad = torch.ones(2), torch.ones_like(param)
    optimizer.zero_grad(set_to_none)
    for gradient in (param.decoupled_grad, param.grad):
        assert gradient is None if set_to_none else gradient.tolist() == [0.0, 0.0]


def test_a_closure_computes_the_gradients_of_the_step() -> None:
    """Called once, with gradients enabled; its loss is returned."""
    param = parameter(3, dtype=torch.float32)
    optimizer = FusedAdam([param])

    def closure() -> Tensor:
        loss = param.square().sum()
        loss.backward()
        return loss

    expected = param.square().sum().item()
    assert optimizer.step(closure).item() == expected
    assert optimizer.state[param]["exp_avg"].abs().min() > 0
    assert optimizer.step() is None


def test_a_scheduler_moves_the_learning_rate() -> None:
    """An ordinary torch optimizer: twice the rate from zero weights is twice the update."""
    params = [nn.Parameter(torch.zeros(4)) for _ in range(2)]
    for param, factor in zip(params, (1.0, 2.0), strict=True):
        optimizer = FusedAdam([param], lr=0.25)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _, factor=factor: factor)
        param.grad = torch.linspace(-1, 1, 4)
        optimizer.step()
    assert torch.equal(params[1], params[0] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, r"expected lr >= 0 but got lr=-1\.0 \(float\)"),
        ({"lr": float("nan")}, r"expected lr >= 0 but got lr=nan"),
        ({"eps": -1e-8}, "expected eps >= 0"),
        ({"weight_decay": -0.1}, "expected weight_decay >= 0"),
        ({"betas": (0.9, 1.0)}, r"expected two betas in \[0, 1\) but got betas=\(0\.9, 1\.0\)"),
        ({"betas": (0.9,)}, "expected two betas"),
        ({"amsgrad": True}, "expected no AMSGrad but got amsgrad=True"),
        ({"exp_avg_dtype": torch.float64}, "expected exp_avg_dtype of torch.float32, .* torch.f"),
        ({"exp_avg_sq_dtype": torch.int8}, "but got exp_avg_sq_dtype=torch.int8"),
        (
            {"master_weights": True, "master_weight_dtype": torch.bfloat16},
            "expected master_weight_dtype of torch.float32, torch.float16 but got",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """With what was expected and what came."""
    with pytest.raises(ValueError, match=message):
        FusedAdam([parameter(2)], **options)


def test_a_group_is_checked_like_the_defaults() -> None:
    """Options of a group, and the dtypes of its parameters."""
    with pytest.raises(ValueError, match="but got eps=-1"):
        FusedAdam([{"params": [parameter(2)], "eps": -1}])
    with pytest.raises(ValueError, match=r"but got param\.dtype=torch\.float64"):
        FusedAdam([parameter(2, dtype=torch.float64)])


def test_gradients_that_no_kernel_takes_are_refused() -> None:
    """Sparse ones, and fp64."""
    param = parameter(2)
    optimizer = FusedAdam([param], use_decoupled_grad=True)
    param.decoupled_grad = torch.ones(2).to_sparse()
    with pytest.raises(ValueError, match=r"a dense gradient but got grad\.layout=torch\.sparse"):
        optimizer.step()
    param.decoupled_grad = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"but got grad\.dtype=torch\.float64"):
        optimizer.step()


def test_a_refused_group_is_not_added() -> None:
    """The next step updates what was there before, and nothing else."""
    param = parameter(2)
    optimizer = FusedAdam([param])
    with pytest.raises(ValueError, match=r"expected lr >= 0 but got lr=-1"):
        optimizer.add_param_group({"params": [parameter(3)], "lr": -1})
    assert [group["params"] for group in optimizer.param_groups] == [[param]]
