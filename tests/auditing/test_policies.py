"""FSDP1 and FSDP2: what their policies compute, reduce and return in, on real ranks."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.utils.data import DataLoader, DistributedSampler

from pytest_precision import Audit, Ranks, audit
from pytest_precision.optim import FusedAdam

BF16, FP32 = torch.bfloat16, torch.float32

OLD, NEW = "FSDP1", "FSDP2"
BOTH = pytest.mark.parametrize("kind", [OLD, NEW])


def plain(dtype: torch.dtype = FP32) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8))
    return nn.Sequential(nn.Sequential(*layers), nn.LayerNorm(8)).to(dtype)


def sharded(kind: str, dtype: torch.dtype = FP32, **policy: Any) -> nn.Module:
    """A model of two units: one for its first part, one for the rest."""
    model, size = plain(dtype), torch.distributed.get_world_size()
    if kind == OLD:
        wrap = partial(
            FullyShardedDataParallel,
            mixed_precision=MixedPrecision(**policy),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        model[0] = wrap(model[0])
        return wrap(model)
    mesh = init_device_mesh("cpu", (size,))
    for part in (model[0], model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    return model


def audited(kind: str, make: Any = torch.optim.AdamW, **options: Any) -> Audit:
    model = sharded(kind, **options)
    return audit(model, make(model.parameters()))


def serious(found: Audit) -> dict[str, str]:
    return {one.rule: one.severity for one in found.at_least("warning")}


RECOMMENDED = {"param_dtype": BF16, "reduce_dtype": FP32}


@BOTH
@pytest.mark.world_size(2)
def test_fp32_storage_under_a_policy(ranks: Ranks, kind: str) -> None:
    """Computes in bf16, reduces and updates in fp32: what the findings recommend."""
    for found in ranks.run(audited, kind, **RECOMMENDED):
        assert serious(found) == {}
        assert [row.name for row in found.rows] == [name for name, _ in plain().named_parameters()]
        assert {(row.stored, row.computes, row.reduces, row.master) for row in found.rows} == {
            ("fp32", "bf16", "fp32", "the parameter itself")
        }
        assert [row.size for row in found.rows] == [own.numel() for own in plain().parameters()]
        (note,) = found.findings
        assert note.rule == "decay-on-vectors"
        assert note.names == tuple(n for n, own in plain().named_parameters() if own.dim() == 1)
        assert {unit.name for unit in found.units} == {"", "0"}


@BOTH
@pytest.mark.world_size(2)
def test_bf16_storage_under_the_same_policy(ranks: Ranks, kind: str) -> None:
    """The policy says nothing of the optimizer, and a shard of small numbers loses little."""
    of_ranks = [serious(found) for found in ranks.run(audited, kind, dtype=BF16, **RECOMMENDED)]
    assert {rule for rules in of_ranks for rule in rules} == {"update-below-fp32"}
    assert "error" in {severity for rules in of_ranks for severity in rules.values()}


@pytest.mark.world_size(2)
def test_masters_of_the_optimizer_on_shards(ranks: Ranks) -> None:
    """The other recommended pattern: bf16 storage, and FusedAdam's own masters."""
    make = partial(FusedAdam, master_weights=True)
    for found in ranks.run(audited, NEW, make, dtype=BF16, **RECOMMENDED):
        assert serious(found) == {}


@BOTH
@pytest.mark.parametrize("policy", [{"reduce_dtype": BF16}, {}], ids=["given", "left out"])
@pytest.mark.world_size(2)
def test_reductions_in_bf16(ranks: Ranks, kind: str, policy: dict[str, Any]) -> None:
    """A policy without reduce_dtype reduces in the dtype of the computation."""
    for found in ranks.run(audited, kind, param_dtype=BF16, **policy):
        assert serious(found) == {"reduce-below-fp32": "warning"}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("dtype", "expected"), [(FP32, {}), (BF16, {"reduce-below-fp32": "warning"})]
)
def test_ddp_reduces_in_the_dtype_of_storage(dtype: torch.dtype, expected: Any) -> None:
    """Masters in the optimizer do not change that."""
    model = nn.parallel.DistributedDataParallel(plain(dtype))
    found = audit(model, FusedAdam(model.parameters(), master_weights=True))
    assert serious(found) == expected
    assert [row.name for row in found.rows] == [name for name, _ in plain().named_parameters()]
    model(torch.ones(2, 8, dtype=dtype)).sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("computes", "outputs", "rules"),
    [
        (FP32, BF16, {"output-rounded": "warning"}),
        (BF16, BF16, {}),
        (BF16, FP32, {}),
        (BF16, None, {}),
    ],
)
@pytest.mark.usefixtures("one_rank")
def test_outputs(computes: torch.dtype, outputs: torch.dtype | None, rules: Any) -> None:
    """Only a cast to fewer digits than were computed rounds anything."""
    found = audited(NEW, param_dtype=computes, reduce_dtype=FP32, output_dtype=outputs)
    assert serious(found) == rules


@pytest.mark.usefixtures("one_rank")
def test_a_flat_parameter_is_named_by_what_is_in_it() -> None:
    """FSDP1 shows no other parameters without use_orig_params."""
    model = FullyShardedDataParallel(plain(), device_id=torch.device("cpu"))
    (row,) = audit(model, torch.optim.AdamW(model.parameters())).rows
    assert row.name == "+".join(name for name, _ in plain().named_parameters())


@pytest.mark.usefixtures("one_rank")
def test_a_sharded_module_is_named_without_wrappers() -> None:
    """As its parameters are, in the rows of the same table."""
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(8, 8)), nn.Linear(8, 8))
    fully_shard(model[0]._checkpoint_wrapped_module, mesh=init_device_mesh("cpu", (1,)))
    found = audit(model, torch.optim.AdamW(model.parameters()))
    assert [unit.name for unit in found.units] == ["0"]
    assert [row.name for row in found.rows][:2] == ["0.weight", "0.bias"]


def made_before() -> Audit:
    model = plain()
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return audit(model, optimizer)


@pytest.mark.world_size(2)
def test_an_optimizer_made_before_the_model_was_sharded(ranks: Ranks) -> None:
    """It keeps the parameters of before, which nothing reads any more."""
    for found in ranks.run(made_before):
        assert serious(found) == {"foreign-parameters": "error"}


def untouched() -> bool:
    model = sharded(NEW, **RECOMMENDED)
    optimizer = torch.optim.AdamW(model.parameters())
    before = copy.deepcopy([*model.parameters()]), optimizer.state_dict()
    audit(model, optimizer)
    same = all(map(torch.equal, before[0], model.parameters()))
    return same and optimizer.state_dict() == before[1]


@pytest.mark.usefixtures("one_rank")
def test_nothing_is_run_or_changed() -> None:
    """No state is made, no parameter is gathered or moved."""
    assert untouched()


def with_a_late_layer(kind: str) -> Audit:
    model = nn.Sequential(nn.Linear(8, 8))
    if kind == "DDP":
        wrapped: nn.Module = nn.parallel.DistributedDataParallel(model)
    else:
        wrapped = fully_shard(model)
    model.add_module("late", nn.Linear(8, 8, bias=False))
    rows = torch.zeros(10, 8)
    sampler: Any = DistributedSampler(rows, seed=dist.get_rank())  # type: ignore[arg-type]
    return audit(
        wrapped,
        torch.optim.AdamW(wrapped.parameters(), weight_decay=0.0),
        DataLoader(rows, sampler=sampler),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
@pytest.mark.world_size(2)
def test_a_parameter_that_came_late_is_reduced_by_nobody(ranks: Ranks, kind: str) -> None:
    """And the ranks' samplers are held against each other."""
    found = ranks.run(with_a_late_layer, kind)
    assert [serious(each) for each in found] == [{"not-reduced": "error"}] * 2
    assert {row.name: row.reduces for row in found[0].rows}["late.weight"] == ""
    together = Audit.together(found)
    assert serious(together) == {"not-reduced": "error", "samplers-apart": "error"}
    assert "by seed 0, epoch 0, seed 1, epoch 0" in together.findings[1].reason
