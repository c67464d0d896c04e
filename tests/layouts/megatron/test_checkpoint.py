"""Checkpoints of the distributed optimizer know logical tensors, and neither ranks nor buckets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from one_step import finish_step
from torch import Tensor

from pytest_precision import Cell, Engine, Parity, ParityError, Workload, layouts, workloads
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer
from pytest_precision.optim.scaled_state import RANGES, decode_scaled, scale_name

ParityIn = Callable[[Cell], Parity]
Whole = dict[str, dict[str, Tensor]]

SCALED = {"main_params_dtype": "fp16", "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"}


def trained(folder: str, options: dict[str, str], *, save: bool) -> dict[str, Whole]:
    """On a rank: all that is kept of each tensor, before a save to `folder` or after a load."""
    cell = Cell("bf16", world_size=torch.distributed.get_world_size())
    engine = layouts.distributed_optimizer(workloads.mlp(), cell, **options)
    if save:
        for step in (1, 2):
            engine.forward_backward(step)
            finish_step(engine)
        engine.save(Path(folder))
    else:
        engine.load(Path(folder))
    state = engine.state_dict()
    kept = {kind: state[kind] for kind in ("model", "master") if kind in state}
    return {"optimizer": state["optimizer"]["state"], "weights": kept}


@pytest.mark.parametrize("loaded_on", [1, 3])
def test_a_checkpoint_does_not_know_the_world_size(
    run_on_ranks: Callable[..., list[Any]], tmp_path: Path, loaded_on: int
) -> None:
    """Saved on two ranks, loaded on one and three: by names, without the padding of buckets."""
    saved = run_on_ranks(2, trained, str(tmp_path), {}, save=True)[0]
    for loaded in run_on_ranks(loaded_on, trained, str(tmp_path), {}, save=False):
        assert loaded.keys() == saved.keys()
        for part in saved:
            assert loaded[part].keys() == saved[part].keys()
            for name, kept in saved[part].items():
                assert loaded[part][name].keys() == kept.keys()
                assert all(torch.equal(loaded[part][name][key], kept[key]) for key in kept)


def values(kept: dict[str, Tensor], key: str) -> tuple[Tensor, Tensor]:
    """What is stored as a scaled tensor, fp32, and the scale of each element."""
    scale = kept[scale_name(key)].expand(kept[key].shape)
    return decode_scaled(kept[key], scale), scale


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(2, 2), (1, 2), (2, 1), (3, 2)])
def test_scaled_state_survives_another_cut(
    run_on_ranks: Callable[..., list[Any]], tmp_path: Path, saved_on: int, loaded_on: int
) -> None:
    """Bit for bit where a shard was part of one; else it is rounded once, under a scale for all.

    The rounding of fp16 and e4m3: half a step of the mantissa, or of the smallest number.
    """
    saved = run_on_ranks(saved_on, trained, str(tmp_path), SCALED, save=True)[0]["optimizer"]
    loaded = run_on_ranks(loaded_on, trained, str(tmp_path), SCALED, save=False)[0]["optimizer"]
    moved = False
    for name, kept in saved.items():
        for key in ("exp_avg", "exp_avg_sq", "master_param"):
            before, _ = values(kept, key)
            after, scale = values(loaded[name], key)
            bits, smallest = (10, 2.0**-24) if kept[key].dtype == torch.float16 else (3, 2.0**-9)
            half_a_step = torch.maximum(before.abs() * 2.0**-bits, scale * smallest) / 2
            assert kept[key].dtype in RANGES
            assert before.any()
            assert ((after - before).abs() <= half_a_step * 1.001).all(), (name, key)
            moved = moved or not torch.equal(after, before)
    assert moved is (loaded_on < saved_on)


class LosesScales(DistributedOptimizer):
    """A load takes over what was stored and forgets under which scale."""

    def load(self, folder: Path) -> None:
        super().load(folder)
        for kept in self.optimizer.state.values():
            kept["exp_avg_sq_scale"].fill_(1.0)


def losing_scales(workload: Workload, cell: Cell, **options: object) -> Engine:
    """`distributed_optimizer` with that defect."""
    return LosesScales.of(workload, cell, **options)


def test_lost_scales_are_caught(parity_there: ParityIn) -> None:
    """Where they are lost, and not when the weights go astray."""
    cell = Cell("bf16", sequence="train-save-load-train")
    with pytest.raises(
        ParityError, match="exp_avg_sq_scale differs after load, which follows step 1"
    ):
        parity_there(cell).check(
            partial(losing_scales, exp_avg_sq_dtype="fp16"),
            partial(layouts.distributed_optimizer, exp_avg_sq_dtype="fp16"),
            workload=workloads.mlp,
        )


@pytest.mark.parametrize("stored", [True, False])
def test_a_checkpoint_of_other_masters_is_refused(parity_in: ParityIn, stored: bool) -> None:
    """Without remainders, or with them where nothing would read them."""
    cell = Cell("bf16", sequence="train-save-swap-train")
    sides = (
        partial(layouts.distributed_optimizer, store_param_remainders=kept)
        for kept in (stored, not stored)
    )
    words = "without separate masters" if stored else "with masters"
    with pytest.raises(ParityError, match=f"expected a checkpoint {words} but got one with "):
        parity_in(cell).check(*sides, workload=workloads.mlp)


def test_a_checkpoint_of_other_moments_is_refused(parity_in: ParityIn) -> None:
    """It would be taken for what it is not."""
    cell = Cell("bf16", sequence="train-save-swap-train")
    sides = (partial(layouts.distributed_optimizer, exp_avg_dtype=name) for name in ("fp16", "fp8"))
    with pytest.raises(
        ParityError, match=r"with exp_avg in torch.float16, exp_avg_scale in .* but got"
    ):
        parity_in(cell).check(*sides, workload=workloads.mlp)
