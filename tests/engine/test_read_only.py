"""What would write to quantized bytes, or to what is computed from them, says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from pytest_precision.formats import by_name
from pytest_precision.modules import QuantizedParameter


def parameter() -> QuantizedParameter:
    values = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    return QuantizedParameter.of(values, by_name("mxfp8_e4m3"))


def fill(weight: Tensor, index: Any) -> None:
    weight[index] = 7.0


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda weights: torch.optim.AdamW(weights, foreach=False),
        lambda weights: torch.optim.AdamW(weights, foreach=True),
        lambda weights: torch.optim.SGD(weights, foreach=True),
        lambda weights: torch.optim.AdamW(weights, fused=True),
    ],
    ids=["loop", "AdamW foreach", "SGD foreach", "AdamW fused"],
)
def test_an_optimizer_without_masters_is_refused(
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
) -> None:
    """Also where it writes to all weights in one operation, plain ones beside quantized ones."""
    weights: list[Any] = [nn.Parameter(torch.ones(3)), parameter()]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    with pytest.raises(TypeError, match="by copy_ or requantize_ but got aten"):
        optimizer(weights).step()


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: fill(weight, (0, 0)),
        lambda weight: fill(weight, slice(3)),
        lambda weight: weight.view(-1)[:3].fill_(7),
        lambda weight: weight.t().mul_(0),
        lambda weight: weight.detach().unbind()[1].zero_(),
        lambda weight: weight.split(16)[1].detach().copy_(torch.ones(16, 64)),
        lambda weight: torch.add(torch.ones(32, 64), 1, out=weight.detach()),
        lambda weight: torch._foreach_zero_([torch.ones(1), weight.detach()]),
        lambda weight: torch._foreach_copy_([weight[0]], [torch.ones(64)]),
        nn.init.normal_,
    ],
)
def test_a_write_that_would_be_lost_is_refused(write: Callable[[Tensor], object]) -> None:
    """To it, to a view of it, to a list that it is in, and as an output."""
    with torch.no_grad(), pytest.raises(TypeError, match="by copy_ or requantize_ but got"):
        write(parameter())


def test_a_collective_is_refused(tmp_path: Path) -> None:
    """It would send, or receive, a copy in bf16."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(TypeError, match=r"got c10d\.broadcast_"):
            dist.broadcast(parameter().detach(), 0)
    finally:
        dist.destroy_process_group()


def test_data_is_not_exchanged() -> None:
    """Bytes would stay as they were; a model is moved and cast before it is quantized."""
    model = nn.Module()
    model.weight = weight = parameter()
    assert model.to("cpu").bfloat16().weight is weight
    for change in (
        lambda: model.float(),
        lambda: setattr(weight, "data", torch.zeros(32, 64).bfloat16()),
    ):
        with pytest.raises(TypeError, match=r"got data of torch\.\w+ on cpu .* before it is"):
            change()


def test_views_are_read_as_plain_tensors_are() -> None:
    """In operations, gradients and as numbers; what is computed of them may be written to."""
    weight = parameter()
    plain = weight.dequantize().requires_grad_()
    for tensor in (weight, plain):
        (tensor.t()[3] * 2).sum().backward()
    assert torch.equal(weight.grad, plain.grad)
    assert weight.t()[3].tolist() == plain.t()[3].tolist()
    computed = weight.detach().view(-1) + 1
    assert type(computed) is Tensor
    assert torch.equal(computed.zero_(), torch.zeros(32 * 64))
