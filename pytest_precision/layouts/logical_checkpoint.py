"""Checkpoints by logical names: whole tensors, whatever was stored together and cut where.

The format is that of `Engine` and of layouts with masters: `model`, `master` where the parameters
are not their own, `optimizer`, `scheduler` and `rng`; and `buffers`, of which every rank has its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from pytest_precision.layouts.parts import values
from pytest_precision.modules.parameter import QuantizedParameter, tensors_of

if TYPE_CHECKING:
    from pytest_precision.layouts.distributed import DistributedOptimizer


def state_dict(engine: DistributedOptimizer) -> dict[str, Any]:
    """All training state of all ranks; a collective."""
    state: dict[str, Any] = {
        "model": dict(_model(engine)),
        "optimizer": {"state": _moments(engine), "param_groups": _groups(engine)},
        "rng": {str(engine.rank): torch.get_rng_state()},
        "buffers": {str(engine.rank): dict(_buffers(engine))},
    }
    if engine.has_masters:
        masters = {shard.name: shard.master for shard in engine.shards}
        state["master"] = _gathered(engine, masters)
        for name, first in _tied(engine):
            state["master"][name] = state["master"][first]
    if engine.scheduler is not None:
        state["scheduler"] = engine.scheduler.state_dict()
    return state


@torch.no_grad()
def load(engine: DistributedOptimizer, folder: Path) -> None:
    """Take over what `state_dict` of an engine of any world size has given.

    Raises:
        ValueError: where something would have to be cast.
    """
    state = _load_state_dict_from_keys(checkpoint_id=folder)
    # What another layout has saved, or fewer ranks, has the buffers of one rank only.
    local = state.get("buffers", {}).get(str(engine.rank), {})
    for name, own in _model(engine):
        _copy(name, own, local.get(name, state["model"][name]))
    moments = state["optimizer"].get("state", {})
    remainders = engine.options.store_param_remainders
    for name, saved in moments.items():
        if ("master_param" in saved) is not remainders:
            raise ValueError(
                f"expected a checkpoint of store_param_remainders={remainders} but got {name} with "
                f"{', '.join(saved)} (dict); load what an engine of the same options saved"
            )
    masters = state["master" if engine.has_masters else "model"]
    for shard in engine.shards:
        _copy(shard.name, shard.master, shard.of(masters))
        kept = [moments[part.name] for part in shard.held_parts if part.name in moments]
        if kept:
            engine.optimizer.state[shard.master] = {
                key: shard.of({part.name: moments[part.name][key] for part in shard.held_parts})
                if kept[0][key].dim()
                else kept[0][key].clone()
                for key in kept[0]
            }
    for buffer in engine.buffers:
        for bucket in buffer.buckets:
            bucket.stale = False  # what was to be gathered is not what was loaded
    for group, saved in zip(
        engine.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True
    ):
        group.update({key: value for key, value in saved.items() if key != "params"})
    if engine.scheduler is not None:
        engine.scheduler.load_state_dict(state["scheduler"])
    # A rank that the saving run did not have goes on with the generator of its first one.
    torch.set_rng_state(state["rng"].get(str(engine.rank), state["rng"]["0"]))


def _model(engine: DistributedOptimizer) -> Iterator[tuple[str, Tensor]]:
    """The resident parameters and buffers by logical names, as views of what the engine has."""
    for name, parameter in engine.model.named_parameters(remove_duplicate=False):
        parts = engine.parts[name]
        if isinstance(parameter, QuantizedParameter):
            for part, member in zip(parts, parameter.members, strict=True):
                for key, tensor in tensors_of(member):
                    yield f"{part.name}.{key}", tensor
        else:
            yield from values(parts, parameter.detach())
    yield from _buffers(engine)


def _buffers(engine: DistributedOptimizer) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in engine.model.named_buffers():
        yield engine.names.of(name), buffer


def _tied(engine: DistributedOptimizer) -> Iterator[tuple[str, str]]:
    """The further names of parameters that have several, each with the first one."""
    firsts = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    for name, parameter in engine.model.named_parameters(remove_duplicate=False):
        if firsts[id(parameter)] != name:
            yield name, firsts[id(parameter)]


def _moments(engine: DistributedOptimizer) -> dict[str, dict[str, Tensor]]:
    """What the optimizer keeps of each logical tensor; nothing before the first step."""
    state = engine.optimizer.state
    whole: dict[str, dict[str, Tensor]] = {}
    if not state:
        return whole
    # Every rank has some shard, and all have the same keys, though perhaps in another order.
    first = dict(sorted(next(iter(state.values())).items()))
    for key, tensor in first.items():
        if tensor.dim():
            kept = {shard.name: state[shard.master][key] for shard in engine.shards}
            for name, value in _gathered(engine, kept).items():
                whole.setdefault(name, {})[key] = value
    for key, tensor in first.items():
        if not tensor.dim():
            for name in whole:
                whole[name][key] = tensor
    return whole


def _groups(engine: DistributedOptimizer) -> list[dict[str, Any]]:
    """As torch's `get_state_dict` gives them, with all parameters of all ranks."""
    own = [
        {key: value for key, value in group.items() if key != "params"}
        for group in engine.optimizer.param_groups
    ]
    named: list[list[str]] = [[] for _ in own]
    for name, _ in engine.model.named_parameters():
        for part in engine.parts[name]:
            named[engine.group_of(part.name)].append(part.name)
    return [{**group, "params": names} for group, names in zip(own, named, strict=True)]


def _gathered(engine: DistributedOptimizer, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole logical tensors of what the shards of all ranks hold, each by its parameter's name."""
    whole: dict[str, Tensor] = {}
    sample = next(iter(held.values()))
    for buffer in engine.buffers:
        flat = torch.zeros(buffer.grads.shape, dtype=sample.dtype, device=sample.device)
        for shard in engine.shards:
            if shard.buffer is buffer:
                buffer.part(shard.slot, shard.owned, flat).copy_(held[shard.name])
        dist.all_reduce(flat.view(torch.uint8))  # a sum of bytes of which all but one are 0
        for slot in buffer.slots:
            whole.update(values(engine.parts[slot.name], buffer.view(slot, flat)))
    return whole


def _copy(name: str, target: Tensor, saved: Tensor) -> None:
    if saved.dtype != target.dtype:
        raise ValueError(
            f"expected {name} to be {target.dtype} but got {saved.dtype}; "
            "load what an engine of the same primary weight saved"
        )
    target.copy_(saved)
