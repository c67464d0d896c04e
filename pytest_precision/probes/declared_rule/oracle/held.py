"""Read a parameter's moments and weight on this rank, and how their dtypes round an update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pytest_precision.engine.engine import Engine
from pytest_precision.engine.groups import state_of
from pytest_precision.errors import NotMeasurableError
from pytest_precision.matrix.tensor_key import is_master
from pytest_precision.optim.scaled_state import RANGES, decode_scaled, scale_name
from pytest_precision.probes.declared_rule.oracle import claims
from pytest_precision.probes.declared_rule.oracle.update import (
    NO_ROUNDING,
    Formula,
    Rounding,
    Roundings,
)
from pytest_precision.recorders.weights import Weight


def parts(engine: Engine, weight: Weight, tensor: Tensor) -> list[Tensor]:
    """Split an engine's stored tensor into this rank's flattened shards of the model's weights."""
    shards = (part for _, part in engine.logical(weight.name, tensor))
    return [(p.to_local() if isinstance(p, DTensor) else p).reshape(-1) for p in shards]


def moments_and_weight(
    engine: Engine, weight: Weight, formula: Formula, weight_parts: Sequence[Tensor]
) -> Iterator[tuple[Tensor, ...]]:
    """Yield a tuple per shard of a parameter on this rank: its moments, then its weight.

    Args:
        engine: the engine to read.
        weight: a parameter of its optimizer.
        formula: names the moments; those that a first step has yet to make are zero.
        weight_parts: what this rank holds of the effective weight.
    """
    state = state_of(engine.optimizer, weight.parameter)
    moments = (_moment(state, name) for name in formula.moments)
    moment_parts = (
        # Zeros of the parts, since making a DTensor takes longer than all else here.
        [torch.zeros_like(part) for part in weight_parts]
        if moment is None
        else parts(engine, weight, moment)
        for moment in moments
    )
    yield from zip(*moment_parts, weight_parts, strict=True)


class HostCopies:
    """Copies tensors to the host, into the same memory each time: fresh pages cost more."""

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return CPU copies of flat tensors, which are valid until the next call.

        Those on the CPU are copied together, by dtype, since most are small. From a device each is
        copied alone, so that nothing is added there.
        """
        alike: dict[tuple[torch.dtype, torch.device], list[int]] = defaultdict(list)
        for number, tensor in enumerate(tensors):
            alike[tensor.dtype, tensor.device].append(number)
        copies = [*tensors]
        for (dtype, device), numbers in alike.items():
            sizes = [tensors[number].numel() for number in numbers]
            memory = self._memory.get((dtype, device))
            if memory is None or memory.numel() < sum(sizes):
                memory = self._memory[dtype, device] = torch.empty(sum(sizes), dtype=dtype)
            parts = torch.split(memory[: sum(sizes)], sizes)
            if device.type == "cpu":
                alike_tensors = [tensors[number] for number in numbers]
                torch.cat(alike_tensors, out=memory[: sum(sizes)])
            for number, part in zip(numbers, parts, strict=True):
                copies[number] = part if device.type == "cpu" else part.copy_(tensors[number])
        return copies


def storage(
    engine: Engine, weight: Weight, formula: Formula, gradient: Rounding, *, fresh: bool
) -> Roundings:
    """Return bounds on the rounding of a parameter's moments, weight and gradient when stored.

    A compensation is rounded by itself, and the parameter that it compensates, too.

    Args:
        engine: after the step.
        weight: the parameter.
        formula: names the moments.
        gradient: what was rounded of its gradient before the optimizer read it.
        fresh: whether the step made the state, and with it a rounded master to start from.
    """
    state = state_of(engine.optimizer, weight.parameter)
    moments = (
        _rounding(state, name, state.get(name, weight.parameter)) for name in formula.moments
    )
    name = next(filter(is_master, state), "")
    rounding = _rounding(state, name, state.get(name, weight.parameter))
    if fresh and name:
        rounding = rounding.twice()
    rest = state.get("compensation")
    move = NO_ROUNDING if rest is None else Rounding.of(rest.dtype)
    return Roundings(tuple(moments), rounding, gradient, move)


def rule_numbers(engine: Engine, formula: Formula) -> list[dict[str, Any]]:
    """Return each parameter group's hyperparameters, such as `lr`, that the update rule uses."""
    groups, numbers = engine.optimizer.param_groups, formula.numbers
    return [{key: _plain(group[key]) for key in numbers if key in group} for group in groups]


def of_tensor(engine: Engine, groups: list[dict[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the hyperparameters of the group that has a tensor of this name; {} if none has."""
    named = zip(engine.named_groups(), groups, strict=True)
    return next((group for (_, names), group in named if name in names), {})


def different_options(options: Mapping[str, Any], declared: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each option of an optimizer that differs from the declared one."""
    for key, value in options.items():
        if value != _plain(declared[key]):
            yield f"the optimizer has {key}={value!r}, the workload {key}={_plain(declared[key])!r}"


def _plain(value: Any) -> Any:
    """Return a number as a Python float, and a tuple or tensor of numbers as a list."""
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, Tensor):
        return value.tolist()
    return float(value) if type(value) is int else value


def _moment(state: Mapping[str, Any], name: str) -> Tensor | None:
    tensor: Tensor | None = state.get(name)
    if tensor is None:
        return None
    scale = state.get(scale_name(name))
    return tensor if scale is None else decode_scaled(tensor, scale)


def _rounding(state: Mapping[str, Any], name: str, tensor: Tensor) -> Rounding:
    scale = state.get(scale_name(name)) if tensor.dtype in RANGES else None
    return Rounding.of(tensor.dtype, scale)


def expect_known_state(
    optimizer: torch.optim.Optimizer,
    formula: Formula,
    parameter: Tensor,
    state: Mapping[str, Any],
) -> None:
    """Raise unless an optimizer updates a parameter by `formula` and keeps plain tensors as state.

    Raises:
        NotMeasurableError: if it is not.
    """
    claims.expect_claim(optimizer, formula.classes)
    groups = optimizer.param_groups
    group = next(
        group for group in groups if any(tensor is parameter for tensor in group["params"])
    )
    claims.expect_numbers(optimizer, group, formula.numbers)
    claims.expect_plain(optimizer, group)
    lacking = [name for name in formula.moments if name not in state] if state else []
    if lacking:
        words = f"{type(optimizer).__name__} has no {' and no '.join(lacking)} for this parameter"
        raise NotMeasurableError(words)
    for name, tensor in {"weight": parameter, **state}.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if isinstance(local, Tensor) and type(local) not in (Tensor, nn.Parameter):
            raise NotMeasurableError(
                f"its {name} is a {type(local).__name__}, whose rounding is not known"
            )
