"""Objects in memory that no hook of torch tells of: schedulers, modules and lists of tensors.

A heap has half a million objects, so one pass serves all that is looked for.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True)
class InMemory:
    """What was found, in an order that differs from run to run.

    Attributes:
        schedulers: of learning rates.
        holders: modules, and lists and dicts whose first value is a tensor.
    """

    schedulers: list[LRScheduler]
    holders: list[Any]


def found_in_memory() -> InMemory:
    """Look through all objects that Python's garbage collector tracks."""
    schedulers, modules = {*_kinds_of(LRScheduler)}, {*_kinds_of(nn.Module)}
    wanted = schedulers | modules | {list, dict}
    few = [one for one in gc.get_objects() if type(one) in wanted]
    return InMemory(
        [one for one in few if type(one) in schedulers],
        [one for one in few if type(one) in modules or _begins_with_tensor(one)],
    )


def _kinds_of(base: type) -> Iterator[type]:
    """Yield a class and all that inherit from it; asking each object is dearer."""
    yield base
    below: list[type] = base.__subclasses__()
    for kind in below:
        yield from _kinds_of(kind)


def _begins_with_tensor(one: Any) -> bool:
    if type(one) is list:
        return bool(one) and isinstance(one[0], Tensor)
    return type(one) is dict and isinstance(next(iter(one.values()), None), Tensor)
