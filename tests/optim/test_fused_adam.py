"""FusedAdam: what it keeps, and what a step does with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_precision.optim import FusedAdam
from pytest_precision.optim.kernel import CHUNK_ELEMENTS

STORAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16 moments": {"exp_avg_dtype": torch.bfloat16, "exp_avg_sq_dtype": torch.bfloat16},
    "fp32 master": {"master_weights": True},
    "fp16 master": {"master_weights": True, "master_weight_dtype": torch.float16},
    "remainder": {"master_weights": True, "store_param_remainders": True},
    "fp8 and fp16 moments": {
        "master_weights": True,
        "exp_avg_dtype": torch.uint8,
        "exp_avg_sq_dtype": torch.float16,
    },
}
every_storage = pytest.mark.parametrize("options", STORAGES.values(), ids=STORAGES)

AGREES = 1e-5
"""Largest difference from torch's AdamW over 100 steps, relative to the largest total update.

Measured up to 7.0e-6 for weights of a standard deviation of 0.02, as models are initialised with.
It grows with the weights, by the rounding of the weights themselves: 4e-4 for a deviation of 1,
most of which is torch's, as its distance from the same run in fp64 shows.
"""


def parameter(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> nn.Parameter:
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(shape, generator=generator).to(dtype))


def small_parameter() -> nn.Parameter:
    return nn.Parameter(parameter(2000, dtype=torch.float32).detach() * 0.02)


def train(optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    """Steps with the same random gradients whatever the optimizer."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()


def test_fp32_agrees_with_torch_adamw() -> None:
    """Weights after 100 steps, relative to the largest total update: ulps mean nothing near 0."""
    ours, theirs = small_parameter(), small_parameter()
    start = ours.detach().clone()
    train(FusedAdam([ours], lr=1e-3, weight_decay=0.01), 100)
    train(torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.01), 100)
    update = (theirs - start).abs().max()
    assert 0 < (ours - theirs).abs().max() <= AGREES * update


def test_l2_mode_agrees_with_torch_adam() -> None:
    """Without `adam_w_mode` the weight decay goes through the moments."""
    ours, theirs = small_parameter(), small_parameter()
    start = ours.detach().clone()
    train(FusedAdam([ours], weight_decay=0.1, adam_w_mode=False), 100)
    train(torch.optim.Adam([theirs], weight_decay=0.1), 100)
    update = (theirs - start).abs().max()
    assert 0 < (ours - theirs).abs().max() <= AGREES * update


def test_the_second_moment_takes_one_minus_the_fp32_beta() -> None:
    """(1 - 0.999f) * g * g, which is 1.3e-5 off the decimal 0.001 * g * g."""
    param = parameter(100, dtype=torch.float32)
    optimizer = FusedAdam([param])
    train(optimizer, 1)
    g = param.grad.numpy()
    rest = np.float32(1) - np.float32(0.999)
    assert np.array_equal(optimizer.state[param]["exp_avg_sq"].numpy(), rest * g * g)


def test_a_remainder_is_the_master_in_half_the_bytes() -> None:
    """Masters agree bit for bit; parameters differ at most where the master is a tie."""
    remainders, masters = parameter(20_000), parameter(20_000)
    split = FusedAdam([remainders], **STORAGES["remainder"])
    whole = FusedAdam([masters], **STORAGES["fp32 master"])
    train(split, 5)
    train(whole, 5)
    assert torch.equal(split.master(remainders), whole.master(masters))
    tie = split.state[remainders]["master_param"] == -0x8000
    assert torch.equal(remainders[~tie], masters[~tie])


def test_a_step_leaves_a_tie_rounded_away_from_zero() -> None:
    """The master 0x3F808000 belongs to the parameter 0x3F81; rounded to even it would be 0x3F80."""
    param = nn.Parameter(torch.full((3,), 0x3F81, dtype=torch.int16).view(torch.bfloat16))
    before = param.detach().clone()
    optimizer = FusedAdam([param], lr=0.0, **STORAGES["remainder"])
    train(optimizer, 1)
    optimizer.state[param]["master_param"].fill_(-0x8000)
    train(optimizer, 1)
    assert torch.equal(param, before)
    assert (optimizer.state[param]["master_param"] == -0x8000).all()


def test_remainders_change_nothing_where_they_cannot_be() -> None:
    """fp16 masters, fp16 parameters and no masters at all ignore `store_param_remainders`."""
    for dtype, options in (
        (torch.bfloat16, STORAGES["fp16 master"]),
        (torch.float16, STORAGES["fp32 master"]),
        (torch.bfloat16, {}),
    ):
        with_option, without = parameter(50, dtype=dtype), parameter(50, dtype=dtype)
        optimizer = FusedAdam([with_option], store_param_remainders=True, **options)
        train(optimizer, 3)
        train(FusedAdam([without], **options), 3)
        assert torch.equal(with_option, without)
        assert torch.int16 not in optimizer.state_dtypes(with_option).values()


@every_storage
def test_the_state_is_stored_in_the_dtypes_that_were_asked_for(options: dict[str, Any]) -> None:
    """After a step, too: no arithmetic replaces a stored tensor by an fp32 one."""
    param = parameter(5, 3)
    optimizer = FusedAdam([param], **options)
    train(optimizer, 2)
    state = optimizer.state[param]
    assert {name: t.dtype for name, t in state.items()} == optimizer.state_dtypes(param)
    assert state["exp_avg"].dtype == options.get("exp_avg_dtype", torch.float32)
    assert state["exp_avg_sq"].dtype == options.get("exp_avg_sq_dtype", torch.float32)


@every_storage
def test_the_parameter_is_the_master_rounded(options: dict[str, Any]) -> None:
    """Within half a unit in the last place of bf16 and, for fp16 masters, of their own format."""
    param = parameter(500)
    optimizer = FusedAdam([param], **options)
    train(optimizer, 5)
    master = optimizer.master(param)
    assert master.dtype == torch.float32
    half_ulp = 2.0**-8 + (2.0**-11 if "master_weight_dtype" in options else 0)
    scale = optimizer.state[param].get("master_param_scale", torch.zeros(()))
    assert ((param - master).abs() <= master.abs() * half_ulp + scale).all()


@every_storage
def test_before_the_first_step_the_master_is_the_parameter(options: dict[str, Any]) -> None:
    """Whatever has been loaded into the parameter since the optimizer was made."""
    param = parameter(50)
    optimizer = FusedAdam([param], **options)
    param.data.copy_(parameter(50, seed=7))
    assert torch.equal(optimizer.master(param), param.float())


def test_an_fp32_parameter_is_its_own_master() -> None:
    """No copy of it is kept, which would be stale after a step."""
    param = parameter(50, dtype=torch.float32)
    optimizer = FusedAdam([param], master_weights=True)
    train(optimizer, 2)
    assert optimizer.state[param].keys() == {"exp_avg", "exp_avg_sq"}
    assert torch.equal(optimizer.master(param), param)


def test_an_empty_group_counts_its_steps() -> None:
    """A group may be empty on one rank and full on another; both must correct the same bias."""
    optimizer = FusedAdam([{"params": []}, {"params": [parameter(3)]}])
    train(optimizer, 3)
    assert [group["step"] for group in optimizer.param_groups] == [3, 3]


def test_every_group_counts_its_own_steps() -> None:
    """What is added later starts with the bias correction of the first step."""
    early, late, fresh = (parameter(20, dtype=torch.float32) for _ in range(3))
    optimizer = FusedAdam([early])
    train(optimizer, 2)
    early.grad = None
    optimizer.add_param_group({"params": [late]})
    late.grad = fresh.grad = torch.ones(20)
    optimizer.step()
    FusedAdam([fresh]).step()
    assert [group["step"] for group in optimizer.param_groups] == [3, 1]
    assert torch.equal(late, fresh)


@every_storage
def test_a_tensor_of_no_elements_is_updated_to_itself(options: dict[str, Any]) -> None:
    """And does not disturb its neighbours: a rank's shard may be empty."""
    empty, full, alone = parameter(0, 4), parameter(9), parameter(9)
    optimizer = FusedAdam([full, empty], **options)
    gradient = torch.linspace(-1, 1, 9).bfloat16()
    empty.grad, full.grad, alone.grad = torch.zeros_like(empty), gradient, gradient
    optimizer.step()
    FusedAdam([alone], **options).step()
    assert torch.equal(full, alone)
    assert optimizer.master(empty).shape == (0, 4)


@every_storage
def test_a_parameter_without_a_gradient_stays(options: dict[str, Any]) -> None:
    """Its state exists after a step, so that checkpoints of all ranks have the same keys."""
    param = parameter(9)
    optimizer = FusedAdam([param], weight_decay=0.1, **options)
    optimizer.step()
    assert torch.equal(param, parameter(9))
    assert optimizer.state[param].keys() == optimizer.state_dtypes(param).keys()


def test_an_idle_expert_with_fp8_moments_becomes_nan() -> None:
    """In the second step, as in Transformer Engine: the first one stores the moments as NaN."""
    param = parameter(6)
    optimizer = FusedAdam([param], exp_avg_dtype=torch.uint8, exp_avg_sq_dtype=torch.uint8)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    assert torch.equal(param, parameter(6))
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert param.isnan().all()


def test_chunks_do_not_show() -> None:
    """A tensor that is updated in pieces gets the bits of the pieces updated alone."""
    whole = parameter(CHUNK_ELEMENTS + 5, dtype=torch.float32)
    pieces = [nn.Parameter(piece.clone()) for piece in whole.detach().split(CHUNK_ELEMENTS)]
    gradient = torch.linspace(-1, 1, CHUNK_ELEMENTS + 5)
    whole.grad = gradient
    for piece, part in zip(pieces, gradient.split(CHUNK_ELEMENTS), strict=True):
        piece.grad = part
    FusedAdam([whole], weight_decay=0.1).step()
    FusedAdam(pieces, weight_decay=0.1).step()
    assert torch.equal(whole, torch.cat([piece.detach() for piece in pieces]))


@every_storage
def test_strides_do_not_show(options: dict[str, Any]) -> None:
    """A transposed parameter gets the bits of the same parameter stored in order."""
    ordered = parameter(6, 4)
    transposed = nn.Parameter(ordered.detach().T.contiguous().T)
    gradient = torch.linspace(-1, 1, 24).reshape(6, 4).bfloat16()
    for param in (ordered, transposed):
        param.grad = gradient
        FusedAdam([param], **options).step()
    assert not transposed.is_contiguous()
    assert torch.equal(ordered, transposed)


@every_storage
def test_a_nan_in_a_gradient_is_seen_in_the_parameter(options: dict[str, Any]) -> None:
    """In that element, and in the weight that the next step updates."""
    param = parameter(15)
    optimizer = FusedAdam([param], **options)
    param.grad = torch.ones_like(param)
    param.grad[7] = torch.nan
    optimizer.step()
    optimizer.step()
    assert bool(param[7].isnan())
    assert bool(optimizer.master(param)[7].isnan())


def test_a_nan_in_the_scale_of_moments_is_seen_in_every_parameter() -> None:
    """With remainders too: no element becomes -0, whatever bits its NaN has."""
    param = parameter(15)
    moments = {"exp_avg_sq_dtype": torch.float16}
    optimizer = FusedAdam([param], **STORAGES["remainder"], **moments)
    param.grad = torch.ones_like(param)
    param.grad[7] = torch.nan
    optimizer.step()
    optimizer.step()
    assert bool(param.isnan().all())
