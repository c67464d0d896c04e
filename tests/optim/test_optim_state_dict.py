"""Optimizer state, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from pytest_precision.optim import AnyPrecisionAdamW, FusedAdam

BF16 = torch.bfloat16
Make = Callable[[list[nn.Parameter]], Any]


def make(cls: type[Any], **options: Any) -> Make:
    return lambda params: cls(params, lr=1e-2, weight_decay=0.1, **options)


OPTIMIZERS: dict[str, Make] = {
    "plain": make(FusedAdam),
    "bf16 moments": make(FusedAdam, exp_avg_dtype=BF16, exp_avg_sq_dtype=BF16),
    "fp32 master": make(FusedAdam, master_weights=True),
    "remainder": make(FusedAdam, master_weights=True, store_param_remainders=True),
    "fp16": make(
        FusedAdam,
        master_weights=True,
        master_weight_dtype=torch.float16,
        exp_avg_dtype=torch.float16,
        exp_avg_sq_dtype=torch.float16,
    ),
    "fp8": make(FusedAdam, exp_avg_dtype=torch.uint8, exp_avg_sq_dtype=torch.uint8),
    "kahan": make(AnyPrecisionAdamW),
    "kahan, fp32 variance": make(AnyPrecisionAdamW, variance_dtype=torch.float32),
}
every_optimizer = pytest.mark.parametrize("new", OPTIMIZERS.values(), ids=OPTIMIZERS)


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(n, generator=generator).bfloat16()) for n in (40, 1)]


def train(optimizer: Any, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for param in optimizer.param_groups[0]["params"]:
            param.grad = torch.randn(param.shape, generator=generator).bfloat16()
        optimizer.step()


def trained(new: Make, steps: int) -> tuple[list[nn.Parameter], Any]:
    params = parameters()
    optimizer = new(params)
    train(optimizer, range(steps))
    return params, optimizer


def loaded(new: Make, params: list[nn.Parameter], optimizer: Any) -> tuple[Any, Any]:
    """Copies of parameters and a fresh optimizer of them with the state of `optimizer`."""
    copies = [nn.Parameter(param.detach().clone()) for param in params]
    fresh = new(copies)
    fresh.load_state_dict(optimizer.state_dict())
    return copies, fresh


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


@every_optimizer
def test_training_goes_on_with_the_same_bits(new: Make) -> None:
    """Two steps, save, load, two steps: as four steps at a stretch."""
    params, optimizer = loaded(new, *trained(new, 2))
    train(optimizer, range(2, 4))
    expected, reference = trained(new, 4)
    assert list(map(bits, params)) == list(map(bits, expected))
    for param, other in zip(params, expected, strict=True):
        assert bits(optimizer.master(param)) == bits(reference.master(other))


@every_optimizer
def test_loaded_state_has_the_dtypes_and_bits_of_the_saved(new: Make) -> None:
    """fp32 moments of bf16 parameters stay fp32, remainders int16, fp8 bytes and scales as is."""
    params, optimizer = trained(new, 2)
    copies, fresh = loaded(new, params, optimizer)
    for param, copy in zip(params, copies, strict=True):
        saved, state = optimizer.state[param], fresh.state[copy]
        assert {n: (t.dtype, bits(t)) for n, t in saved.items()} == {
            n: (t.dtype, bits(t)) for n, t in state.items()
        }


def test_torch_alone_would_have_cast_the_moments() -> None:
    """What `Optimizer.load_state_dict` does to the same state: the reason for a method of ours."""
    params, optimizer = trained(OPTIMIZERS["remainder"], 2)
    Optimizer.load_state_dict(optimizer, optimizer.state_dict())
    dtypes = {name: value.dtype for name, value in optimizer.state[params[0]].items()}
    assert dtypes == {"exp_avg": BF16, "exp_avg_sq": BF16, "master_param": BF16}


def test_loaded_state_is_a_copy() -> None:
    """The optimizer that it came from may go on."""
    params, optimizer = trained(OPTIMIZERS["fp32 master"], 2)
    copies, fresh = loaded(OPTIMIZERS["fp32 master"], params, optimizer)
    before = fresh.master(copies[0]).clone()
    train(optimizer, range(2, 4))
    assert torch.equal(fresh.master(copies[0]), before)


def test_options_of_groups_and_the_step_counter_are_loaded() -> None:
    """The bias correction goes on where it was."""
    params, optimizer = trained(OPTIMIZERS["plain"], 3)
    optimizer.param_groups[0]["lr"] = 0.125
    _, fresh = loaded(OPTIMIZERS["plain"], params, optimizer)
    assert fresh.param_groups[0]["step"] == 3
    assert fresh.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize(
    ("saver", "loader", "message"),
    [
        ("fp32 master", "remainder", "master_param .* torch.int16 but got torch.float32; .*split"),
        ("remainder", "fp32 master", "master_param .* torch.float32 but got torch.int16; .*join"),
        ("bf16 moments", "plain", "exp_avg of parameter 0 .* torch.float32 but got torch.bfloat16"),
        ("plain", "bf16 moments", "exp_avg of parameter 0 .* torch.bfloat16 but got torch.float32"),
        ("kahan", "kahan, fp32 variance", "exp_avg_sq of parameter 0 to be torch.float32 but got"),
        ("plain", "fp32 master", r"expected state \['exp_avg', 'exp_avg_sq', 'master_param'\] of"),
        ("fp32 master", "plain", r"but got \['exp_avg', 'exp_avg_sq', 'master_param'\]; load"),
    ],
)
def test_state_of_other_options_is_refused(saver: str, loader: str, message: str) -> None:
    """A cast would zero a remainder and cut off bits of moments; so nothing is loaded at all."""
    _, saved = trained(OPTIMIZERS[saver], 2)
    params, optimizer = trained(OPTIMIZERS[loader], 1)
    before = {name: bits(value) for name, value in optimizer.state[params[0]].items()}
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved.state_dict())
    assert before == {name: bits(value) for name, value in optimizer.state[params[0]].items()}
    assert optimizer.param_groups[0].get("step", 1) == 1


def test_groups_of_other_sizes_are_refused() -> None:
    """By torch, and before anything is loaded."""
    _, saved = trained(OPTIMIZERS["plain"], 2)
    params = parameters()[:1]
    optimizer = OPTIMIZERS["plain"](params)
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(saved.state_dict())
    assert not optimizer.state


def test_a_state_dict_from_before_the_first_step_loads() -> None:
    """It holds no tensors, and the next step is the first."""
    fresh = OPTIMIZERS["remainder"](parameters())
    _, optimizer = trained(OPTIMIZERS["remainder"], 2)
    optimizer.load_state_dict(fresh.state_dict())
    assert not optimizer.state
    assert optimizer.param_groups[0]["step"] == 0


@every_optimizer
def test_distributed_checkpoints_keep_the_bits(new: Make) -> None:
    """State by parameter names, as `torch.distributed.checkpoint` wants it."""
    models = [nn.Linear(5, 3).bfloat16() for _ in range(2)]
    optimizers = [new(list(model.parameters())) for model in models]
    train(optimizers[0], range(2))
    model_state, optimizer_state = get_state_dict(models[0], optimizers[0])
    set_state_dict(
        models[1],
        optimizers[1],
        model_state_dict=model_state,
        optim_state_dict=optimizer_state,
    )
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        saved, state = optimizers[0].state[ours], optimizers[1].state[theirs]
        assert {name: bits(value) for name, value in saved.items()} == {
            name: bits(value) for name, value in state.items()
        }
    assert optimizers[1].param_groups[0].get("step") == optimizers[0].param_groups[0].get("step")
