"""Read the hyperparameters in an optimizer's parameter groups, one value per parameter.

Two optimizers may group the same parameters differently; what matters is the values that each
parameter is updated with.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.engine.changes import Changes
from pytest_precision.engine.kinds import KINDS
from pytest_precision.engine.observation import Observation, unshown_in, whole
from pytest_precision.engine.values import leaves, number
from pytest_precision.matrix.tensor_key import TensorKey

OWN_KINDS = tuple(name for name, kind in KINDS.items() if kind.of_groups)
"""Entries of a group with a kind of their own."""

GROUP_ELSEWHERE = frozenset({"params", "param_names", *OWN_KINDS})
"""Entries of a group that are not a `hyper`: the parameters, and those with a kind of their own."""

SWITCHES = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Entries that say how an update is computed; two sides may be there to compare them."""

MANY = 64
"""Values in one option from which each is shown no more: they are shown for every parameter."""

NamedGroup = tuple[Mapping[str, Any], Sequence[str]]
"""A group with the names of its parameters."""

Groups = Iterable[NamedGroup]
"""Each group with the names of its parameters."""

Members = Iterable[tuple[Mapping[str, Any], Sequence[Tensor]]]
"""Each group with its parameters."""


def group_members(optimizer: Optimizer) -> Members:
    """Yield (group, parameters) for each parameter group of an optimizer."""
    return ((group, group["params"]) for group in optimizer.param_groups)


def updated_tensors(optimizer: Optimizer) -> list[Tensor]:
    """List the tensors that an optimizer updates."""
    return [parameter for _, parameters in group_members(optimizer) for parameter in parameters]


def places(members: Members) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for tensors in parameter groups; a path is `param_groups.0.params.3`."""
    for g, (_, parameters) in enumerate(members):
        for p, parameter in enumerate(parameters):
            yield f"param_groups.{g}.params.{p}", parameter


def groups_with_names(members: Members, updated: Iterable[Iterable[str]]) -> Groups:
    """Yield each parameter group with the names of the model's tensors in it.

    Args:
        members: the groups.
        updated: the names of the logical tensors in each of their tensors, in their order.
    """
    rest = iter(updated)
    for group, parameters in members:
        several = [names for _, names in zip(parameters, rest, strict=False)]
        yield group, [*dict.fromkeys(chain.from_iterable(several))]


def counters(groups: Groups, counted: Container[str]) -> Iterator[Observation]:
    """Yield a step count for each parameter of a group that keeps one count for all of them.

    Args:
        groups: the groups.
        counted: those that count by themselves; see `own_steps`.
    """
    for group, names in groups:
        step = _number(group.get("step"))
        if step is not None:  # torch's own counters are fp32
            uncounted = (name for name in names if name not in counted)
            yield from (whole("step", name, step.float()) for name in uncounted)


def own_steps(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for the `step` of each group whose parameters count by themselves, too.

    A group without state may turn out to be one: its start is asked for before the first update.
    """
    for place, (group, parameters) in enumerate(group_members(optimizer)):
        if group.get("step") is None:
            continue
        states = [state_of(optimizer, parameter) for parameter in parameters]
        if not any(states) or any("step" in state for state in states):
            yield f"step of group {place} of {type(optimizer).__name__}", group["step"]


def learning_rates(groups: Groups) -> Iterator[Observation]:
    """Yield an observation of each parameter's learning rate, taken from its group."""
    for group, names in groups:
        rate = _number(group.get("lr"))
        if rate is not None:
            yield from _of_each(whole("lr", "", rate), names)


def other_numbers(groups: Groups, changes: Changes | None = None) -> Iterator[Observation]:
    """Yield every parameter's options except `lr` and `step`, with names like `eps of head.weight`.

    Args:
        groups: each group with the names of its parameters.
        changes: if given, only the options that it says to have changed are yielded.
    """
    for place, (group, names) in enumerate(groups):
        for option, value in _options_of(group):
            if changes is None or changes.differs(f"{place}.{option}", value):
                options = (TensorKey(name, option).name("hyper") for name in names)
                yield from _of_each(whole("hyper", "", value), options)


def _of_each(observation: Observation, names: Iterable[str]) -> Iterator[Observation]:
    """Yield an observation of what several parameters have in common, under each name."""
    return map(observation.of_name, names)


def group_options(groups: Groups) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for options of groups except `lr` and `step`; a path is like `0.eps`."""
    for place, (group, _) in enumerate(groups):
        yield from ((f"{place}.{option}", value) for option, value in _options_of(group))


def _options_of(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, value) for a group's options except `lr`, `step` and flags such as `fused`."""
    for key in sorted(group.keys() - GROUP_ELSEWHERE - SWITCHES):
        yield from ((f"{key}{path}", value) for path, value in _options(group[key]))


def unshown(optimizer: Optimizer) -> dict[str, str]:
    """Return an optimizer's options and state that cannot become tensors, with their classes."""
    reasons: dict[str, str] = {}
    kind = type(optimizer).__name__
    for group, parameters in group_members(optimizer):
        for key in OWN_KINDS:
            if group.get(key) is not None and _number(group[key]) is None:
                reasons[f"{key} of the groups"] = f"{kind} has a {type(group[key]).__name__} there"
        for key in group.keys() - GROUP_ELSEWHERE - SWITCHES:
            if not _is_empty(group[key]) and not _options(group[key]):
                reasons[f"hyper {key}"] = f"{kind} has a {type(group[key]).__name__} there"
        for parameter in parameters:
            for key, value in state_of(optimizer, parameter).items():
                for part in unshown_in(value):
                    reasons[f"what is no tensor in {key}"] = f"{kind} keeps {part} there"
    return reasons


def state_of(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """Return an optimizer's state of one parameter as a mapping from name to value."""
    state = optimizer.state.get(parameter, {})
    named = state if isinstance(state, Mapping) else {"state": state}
    return {str(key): value for key, value in named.items()}


def gradient(optimizer: Optimizer, parameter: Tensor) -> Tensor | None:
    """Return the gradient that an optimizer reads for a parameter; None if it has none."""
    decoupled = getattr(optimizer, "use_decoupled_grad", False)
    grad: Tensor | None = getattr(parameter, "decoupled_grad" if decoupled else "grad", None)
    return grad


def _number(value: Any) -> Tensor | None:
    """Return a number or one-element tensor as an fp64 scalar tensor; None for other values."""
    if isinstance(value, Tensor):
        return value.detach().reshape(()).double() if value.numel() == 1 else None
    try:
        return torch.tensor(float(value), dtype=torch.float64)
    except (TypeError, ValueError):
        return None


def switches(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for `foreach`, `fused` and other options of how an update is computed."""
    for place, (group, _) in enumerate(group_members(optimizer)):
        for key in sorted(group.keys() & SWITCHES):
            yield f"{key} of group {place} of {type(optimizer).__name__}", group[key]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple, Mapping)) and not value)


def _options(value: Any) -> list[tuple[str, Tensor]]:
    """List (path, tensor) for the values in a parameter group's option; empty if over 64 values."""
    numbers = [(path, number(leaf)) for path, leaf in islice(leaves(value), MANY + 1)]
    shown = [(path, tensor) for path, tensor in numbers if tensor is not None]
    return shown if len(numbers) <= MANY else []
