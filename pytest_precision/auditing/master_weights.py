"""Find which optimizer tensors are a model's parameters, which their masters, and which neither.

A framework that keeps masters gives its optimizer tensors that are no parameters of the model, and
rarely says of which parameter they are. The values do: rounded to the dtype of the parameter, a
master is the parameter, or a run of it where the optimizer is sharded or flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_precision.auditing.optimizer_facts import Holder
from pytest_precision.auditing.setup import TrainingSetup

Relation = Literal["own", "master", "stale", "copy", "foreign"]

RUN = 16
"""Elements that are looked for at a time: equal by chance once in 2^112 places in bf16."""

PLACES = 5
"""Places in a tensor at which such runs are taken."""


@dataclass(frozen=True)
class Updated:
    """A tensor that an optimizer updates, and what it is to the model: a parameter, master or copy.

    Attributes:
        tensor: as the optimizer has it.
        holder: the optimizer.
        group: the parameter group.
        place: number of the group and of the tensor in it.
        relation: what it is to the model: `own` parameter, `master` of parameters, a master that
            does not round to its parameter (`stale`), a `copy` that nobody copies back, or
            `foreign`.
        names: the parameters that it is, or is the master of.
    """

    tensor: Tensor
    holder: Holder
    group: Mapping[str, Any]
    place: str
    relation: Relation
    names: tuple[str, ...]


class Ownership:
    """The tensors that optimizers update, each with the parameters that it is, or is the master of.

    Args:
        setup: what the loop was built of.
    """

    def __init__(self, setup: TrainingSetup) -> None:
        self.parameters = dict(setup.parameters())
        self.holders = [holder for optimizer in setup.optimizers for holder in Holder.of(optimizer)]
        self._parameter_names = {id(parameter): name for name, parameter in self.parameters.items()}
        # Megatron's optimizers say of each parameter which tensor is its master.
        masters = {
            name: getattr(parameter, "main_param", None)
            for name, parameter in self.parameters.items()
        }
        self._linked = {id(main): name for name, main in masters.items() if main is not None}
        # In the order in which they are looked for: those of which a master was found come last.
        self._left = dict.fromkeys(self.parameters)
        self._hidden = [
            part
            for optimizer in setup.optimizers
            for part in getattr(optimizer, "fp32_partitioned_groups_flat", ())
        ]

    @cached_property
    def updated(self) -> list[Updated]:
        """Every tensor that an optimizer updates, with the parameters it is, or is master of."""
        return [*self._updated()]

    @cached_property
    def by_name(self) -> dict[str, list[Updated]]:
        """The tensors that optimizers update for each parameter, by the parameter's name."""
        tensors_by_name: dict[str, list[Updated]] = {}
        for updated in self.updated:
            for name in updated.names:
                tensors_by_name.setdefault(name, []).append(updated)
        return tensors_by_name

    def _updated(self) -> Iterator[Updated]:
        for holder in self.holders:
            groups = holder.optimizer.param_groups
            for number, group in enumerate(groups):
                # DeepSpeed's stage 3 has its flat masters in the groups during a step only.
                for place, tensor in enumerate(
                    group["params"] or self._hidden[number : number + 1]
                ):
                    where = f"group {number}, tensor {place}"
                    relation, names = self._relation(holder, tensor)
                    yield Updated(tensor, holder, group, where, relation, names)

    def _relation(self, holder: Holder, tensor: Tensor) -> tuple[Relation, tuple[str, ...]]:
        if id(tensor) in self._parameter_names:
            return "own", (self._parameter_names[id(tensor)],)
        if id(tensor) in self._linked:
            name = self._linked[id(tensor)]
            return ("master" if holds(tensor, self.parameters[name]) else "stale"), (name,)
        names = tuple(self._names_rounded_to(tensor))
        if len(names) == 1 and not holder.in_framework and self._is_copy(tensor, names[0]):
            return "copy", ()
        if names:
            return "master", names
        # What is stored as bytes was quantized from its master, and is no rounding of it.
        coded = [name for name, parameter in self.parameters.items() if is_coded(parameter)]
        return ("master", tuple(coded)) if coded else ("foreign", ())

    def _names_rounded_to(self, tensor: Tensor) -> Iterator[str]:
        """Yield the names of the parameters whose values an optimizer's tensor rounds to."""
        for name in [*self._left]:
            parameter = self.parameters[name]
            if holds(tensor, parameter):
                self._left[name] = self._left.pop(name)
                yield name
                if tensor.numel() <= parameter.numel():
                    return

    def _is_copy(self, tensor: Tensor, name: str) -> bool:
        """Return whether a tensor is a separate copy of a parameter, in its dtype and shape."""
        parameter = self.parameters[name]
        alike = (tensor.dtype, tensor.shape) == (parameter.dtype, parameter.shape)
        return alike and _flat_tensor(tensor).data_ptr() != _flat_tensor(parameter).data_ptr()


def is_coded(parameter: Tensor) -> bool:
    """Return whether a parameter is stored quantized, as codes and scales."""
    return type(parameter).dequantize is not Tensor.dequantize


def holds(master: Tensor, parameter: Tensor) -> bool:
    """Return whether a tensor rounds to a parameter's values, or to a part of them."""
    flat_parameter = _flat_tensor(parameter)
    rounded_tensor = _flat_tensor(master).to(parameter.dtype)
    if (
        not flat_parameter.numel()
        or not rounded_tensor.numel()
        or flat_parameter.device != rounded_tensor.device
    ):
        return False
    if flat_parameter.is_meta:  # without values, only sizes can be compared
        return flat_parameter.numel() == rounded_tensor.numel()
    if flat_parameter.numel() == rounded_tensor.numel():
        return bool(torch.equal(flat_parameter, rounded_tensor))
    longer, other_tensor = (
        (flat_parameter, rounded_tensor)
        if flat_parameter.numel() > rounded_tensor.numel()
        else (rounded_tensor, flat_parameter)
    )
    return any(_occurs(run, longer) for run in _runs(other_tensor))


def _flat_tensor(tensor: Tensor) -> Tensor:
    shard = getattr(tensor, "ds_tensor", tensor)  # DeepSpeed's stage 3 leaves the parameter empty
    local = shard.to_local() if isinstance(shard, DTensor) else shard
    return local.detach().flatten()


def _runs(flat_tensor: Tensor) -> Iterator[Tensor]:
    """Yield slices of a flat tensor to look for in another; a constant one only if all are."""
    size = min(RUN, flat_tensor.numel())
    last = flat_tensor.numel() - size
    runs = [
        flat_tensor[start : start + size]
        for start in {last * n // (PLACES - 1) for n in range(PLACES)}
    ]
    telling = [run for run in runs if bool((run != run[0]).any())]
    yield from telling or runs[:1]


def _occurs(run: Tensor, flat_tensor: Tensor) -> bool:
    starts = (flat_tensor[: flat_tensor.numel() - run.numel() + 1] == run[0]).nonzero().flatten()
    places = starts[:, None] + torch.arange(run.numel(), device=flat_tensor.device)
    return bool((flat_tensor[places] == run).all(1).any())
