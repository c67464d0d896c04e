"""Checkpoints of whole, unpacked tensors, however a layout packs and shards them.

The format is that of `Engine` and of layouts with masters: `model`, `master` where the parameters
are not their own masters, `optimizer`, and what `state_beside_weights` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision._torch.distributed import whole_checkpoint
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.dtypes import expect_saved_dtype
from pytest_precision.layouts.megatron.gathered import GatheredEngine
from pytest_precision.layouts.megatron.packing import logical_values
from pytest_precision.layouts.megatron.shards import Shard
from pytest_precision.modules.parameter import QuantizedParameter, tensors_of
from pytest_precision.optim.fused_adam import FusedAdam
from pytest_precision.optim.scaled_state import decode_scaled, encode_, scale_name


def state_dict(engine: GatheredEngine) -> dict[str, Any]:
    """Return all training state of all ranks; a collective."""
    state: dict[str, Any] = {
        "model": dict(_model(engine)),
        "optimizer": {"state": _whole_state(engine), "param_groups": _groups(engine)},
    }
    if engine.has_masters:
        masters = {shard.name: shard.master for shard in engine.shards}
        state["master"] = _gathered_tensors(engine, masters)
        for name, first in _tied(engine):
            state["master"][name] = state["master"][first]
    return state | engine.state_beside_weights()


@torch.no_grad()
def load_state(engine: GatheredEngine, folder: Path) -> None:
    """Load a saved `state_dict` from a folder, whatever world size has saved it.

    Raises:
        ValueError: where a tensor would have to be cast, or the options differ.
    """
    state = whole_checkpoint(folder)
    if ("master" in state) != engine.has_masters:
        expected = "with masters" if engine.has_masters else "without separate masters"
        raise ValueError(
            expected_but_got(
                f"a checkpoint {expected}",
                f"one with {', '.join(sorted(state))} (dict)",
                "load what an engine of the same options saved",
            )
        )
    for name, tensor in _model(engine):
        _copy(name, tensor, state["model"][name])
    saved = state["optimizer"].get("state", {})
    masters = state["master" if engine.has_masters else "model"]
    for shard in engine.shards:
        _copy(shard.name, shard.master, shard.of(masters))
        saved_state = {
            part.name: saved[part.name] for part in shard.held_parts if part.name in saved
        }
        if saved_state:
            engine.optimizer.state[shard.master] = _shard_state(engine, shard, saved_state)
    for buffer in engine.buffers:
        for bucket in buffer.buckets:
            bucket.stale = False  # what was to be gathered is not what was loaded
    for group, its in zip(
        engine.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True
    ):
        group.update({key: value for key, value in its.items() if key != "params"})
    engine.load_state_beside_weights(state)


def _model(engine: GatheredEngine) -> Iterator[tuple[str, Tensor]]:
    """Yield the original model's parameters and buffers by name, as views of engine memory."""
    for name, parameter in engine.model.named_parameters(remove_duplicate=False):
        parts = engine.parts[name]
        if isinstance(parameter, QuantizedParameter):
            for part, member in zip(parts, parameter.members, strict=True):
                for key, tensor in tensors_of(member):
                    yield f"{part.name}.{key}", tensor
        else:
            yield from logical_values(parts, parameter.detach())
    yield from engine.named_buffers()


def _tied(engine: GatheredEngine) -> Iterator[tuple[str, str]]:
    """Yield (other name, first name) for each further name of a tied parameter."""
    firsts = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    for name, parameter in engine.model.named_parameters(remove_duplicate=False):
        if firsts[id(parameter)] != name:
            yield name, firsts[id(parameter)]


def _whole_state(engine: GatheredEngine) -> dict[str, dict[str, Tensor]]:
    """Gather all ranks' optimizer state, such as moments, by the names of unsharded tensors.

    It is empty before the first step. Where shards have scales of their own, the scale of every
    element is returned.
    """
    state = engine.optimizer.state
    whole_tensors: dict[str, dict[str, Tensor]] = {}
    if not state:
        return whole_tensors
    first = next(iter(state.values()))  # every rank has some shard
    counted = {key: tensor for key, tensor in first.items() if key == "step"}
    for key in sorted(first.keys() - counted.keys()):  # all ranks gather in the same order
        shard_tensors = {
            shard.name: state[shard.master][key].expand_as(shard.master) for shard in engine.shards
        }
        for name, value in _gathered_tensors(engine, shard_tensors).items():
            whole_tensors.setdefault(name, {})[key] = (
                value if first[key].dim() else _one_scale(value)
            )
    return {name: tensors | counted for name, tensors in whole_tensors.items()}


def _one_scale(scales: Tensor) -> Tensor:
    """Reduce per-element scales to one scale if all are equal; else return them unchanged."""
    bits = scales.flatten().view(torch.int32)
    return scales.flatten()[0].clone() if (bits == bits[0]).all() else scales


def _shard_state(
    engine: GatheredEngine, shard: Shard, saved_tensors: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return a shard's optimizer state, cut out of the saved state of whole tensors.

    Elements that have different scales, since they were in several shards, get one scale.
    """
    first = next(iter(saved_tensors.values()))
    _expect_state(shard, {key: tensor.dtype for key, tensor in first.items()}, engine.optimizer)
    state = {
        key: shard.of(
            {
                part.name: saved_tensors[part.name][key].expand(part.shape)
                for part in shard.held_parts
            }
        )
        for key in first.keys() - {"step"}
    }
    for scaled in [key for key in state if scale_name(key) in state]:
        scales = state[scale_name(scaled)]
        scale = _one_scale(scales)
        if scale.dim():
            scale = scales.new_empty(())
            encode_(state[scaled], scale, decode_scaled(state[scaled], scales))
        state[scale_name(scaled)] = scale
    return state | {key: first[key].clone() for key in first if key == "step"}


def _expect_state(
    shard: Shard, saved_dtypes: dict[str, torch.dtype], optimizer: torch.optim.Optimizer
) -> None:
    expected_dtypes = dict.fromkeys(("step", "exp_avg", "exp_avg_sq"), torch.float32)
    if isinstance(optimizer, FusedAdam):
        expected_dtypes = optimizer.state_dtypes(shard.master)
    if saved_dtypes != expected_dtypes:
        expected_words, got = (
            ", ".join(f"{key} in {dtype}" for key, dtype in sorted(dtypes.items()))
            for dtypes in (expected_dtypes, saved_dtypes)
        )
        raise ValueError(
            expected_but_got(
                f"a checkpoint of {shard.name} with {expected_words}",
                got,
                "load what an engine of the same options saved",
            )
        )


def _groups(engine: GatheredEngine) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups with the names of all ranks' parameters."""
    names = [p.name for name, _ in engine.model.named_parameters() for p in engine.parts[name]]
    return [
        {**group, "params": [name for name in names if name in members]}
        for group, members in zip(engine.optimizer.param_groups, engine.members, strict=True)
    ]


def _gathered_tensors(
    engine: GatheredEngine, shard_tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Gather whole tensors from the shards of all ranks; `shard_tensors` has those of this rank."""
    whole_tensors: dict[str, Tensor] = {}
    sample = next(iter(shard_tensors.values()))
    for buffer in engine.buffers:
        flat_tensor = torch.zeros(buffer.grads.shape, dtype=sample.dtype, device=sample.device)
        for shard in engine.shards:
            if shard.buffer is buffer:
                buffer.part(shard.slot, shard.owned, flat_tensor).copy_(shard_tensors[shard.name])
        dist.all_reduce(flat_tensor.view(torch.uint8))  # a sum of bytes of which all but one are 0
        for slot in buffer.slots:
            whole_tensors.update(
                logical_values(engine.parts[slot.name], buffer.view(slot, flat_tensor))
            )
    return whole_tensors


def _copy(name: str, target: Tensor, saved_tensor: Tensor) -> None:
    expect_saved_dtype(name, target, saved_tensor)
    target.copy_(saved_tensor)
