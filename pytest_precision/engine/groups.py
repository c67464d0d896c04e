"""Groups: the numbers of an optimizer's parameter groups, as those of each parameter.

Two optimizers may put the same parameters into other groups; what counts is what each parameter is
updated with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.observation import Observation, whole

ELSEWHERE = frozenset({"params", "lr", "step"})
"""What a group holds that is no `hyper`: the parameters, and what is a kind of its own."""

Groups = Iterable[tuple[Mapping[str, Any], Sequence[str]]]
"""Each group with the names of its parameters."""


def rates(groups: Groups) -> Iterator[Observation]:
    """Yield the learning rate of each parameter."""
    for group, names in groups:
        rate = torch.as_tensor(group["lr"], dtype=torch.float64)
        yield from (whole("lr", name, rate) for name in names)


def other_numbers(groups: Groups) -> Iterator[Observation]:
    """Yield every other number that each parameter is updated with: `eps of head.weight`."""
    for group, names in groups:
        for key in sorted(group.keys() - ELSEWHERE):
            for number, value in _numbers(key, group[key]):
                yield from (whole("hyper", f"{number} of {name}", value) for name in names)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the numbers in an option; a switch is none, nor is anything else."""
    if isinstance(value, (list, tuple)):
        for place, entry in enumerate(value):
            yield from _numbers(f"{name}.{place}", entry)
    elif isinstance(value, Tensor):
        if value.numel() == 1 and value.dtype is not torch.bool:
            yield name, value.detach().reshape(()).to(torch.float64)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, torch.tensor(value, dtype=torch.float64)
