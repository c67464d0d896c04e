"""Take one step of an optimizer on copies, to see which options it reads and how it rounds.

The step is that of the optimizer's class, on an object that shares nothing with the optimizer which
the step could change: a few elements of one tensor take the place of its parameters, its groups and
attributes are copied, and its hooks are left out. What cannot be copied, or does not step alone, is
not tried.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pytest_precision.auditing.optimizer_facts import Holder

TRIED_ELEMENTS = 1 << 14
"""Elements of the tensor on which a step is tried."""

COPIED_TENSORS = 1 << 20
"""Elements of all tensors in an optimizer's attributes up to which they are copied."""


class CountedOptions(dict[str, Any]):
    """A parameter group that notes which of its options are read.

    Attributes:
        read: names of these.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option, and note that it is read."""
        self.read.add(name)
        return super().get(name, default)

    # What goes through all of them may read each.
    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """Return the names of all options, and note that each is read."""
        self.read.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        """Return all options, and note that each is read."""
        self.read.update(super().keys())
        return super().items()

    def values(self) -> Any:
        """Return the values of all options, and note that each is read."""
        self.read.update(super().keys())
        return super().values()


@dataclass(frozen=True)
class TrialStep:
    """One step of an optimizer on a copy.

    Attributes:
        read: the options of the group that it has read.
        start: the copy before the step.
        end: the copy after it.
    """

    read: frozenset[str]
    start: Tensor
    end: Tensor

    @property
    def moved(self) -> Tensor:
        """Return how each element moved, in fp64."""
        return self.end.double() - self.start.double()


def trial_step(
    holder: Holder,
    group: Mapping[str, Any],
    start: Tensor,
    gradient: Tensor,
    *,
    rate: float = 1.0,
    seed: int = 0,
) -> TrialStep | None:
    """Return the change that one optimizer step makes to a tensor; None if no step can be tried.

    Args:
        holder: has the optimizer.
        group: whose options it has.
        start: the tensor, which is copied.
        gradient: of it.
        rate: factor of the group's rate.
        seed: of what it draws.
    """
    if not _steps_alone(holder):
        return None
    parameter = nn.Parameter(start.clone())
    parameter.grad = gradient.to(start.dtype)
    devices = [start.device] if start.device.type == "cuda" else []
    try:
        options = {
            name: copy.deepcopy(option) for name, option in group.items() if name != "params"
        }
        if rate != 1.0:
            options["lr"] = options["lr"] * rate
        counted_options = CountedOptions({"params": [parameter], **options})
        trial = _copied(holder.optimizer, counted_options)
        with torch.random.fork_rng(devices), _uncompiled():
            torch.manual_seed(seed)
            type(holder.optimizer).step(trial)
    except Exception:  # whatever an optimizer raises on a tensor that it was not made for
        return None
    return TrialStep(frozenset(counted_options.read), start, parameter.detach())


def _uncompiled() -> AbstractContextManager[object]:
    """Return a context in which compiled functions run as they are written.

    Where nothing has imported the compiler yet, nothing is compiled, and importing it takes long.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    uncompiled: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return uncompiled


def sample(tensor: Tensor) -> Tensor | None:
    """Return elements of a parameter, as many as are tried; None for one without plain values.

    A small tensor is repeated along its first dimension, a large one is cut there.
    """
    local_tensor = tensor.detach()
    local_tensor = local_tensor.to_local() if isinstance(local_tensor, DTensor) else local_tensor
    if type(local_tensor) is not Tensor or local_tensor.is_meta or not local_tensor.numel():
        return None
    rows = local_tensor.reshape(local_tensor.shape or (1,))
    row = max(1, rows[:1].numel())
    wanted_rows = max(1, TRIED_ELEMENTS // row)
    repeated = rows.repeat(-(-wanted_rows // len(rows)), *[1] * (rows.dim() - 1))
    return repeated[:wanted_rows].clone()


def _steps_alone(holder: Holder) -> bool:
    """Return whether a step of the optimizer needs neither a framework nor other ranks."""
    several = dist.is_initialized() and dist.get_world_size() > 1
    of_torch = type(holder.optimizer).__module__.startswith("torch.optim.")
    plain = isinstance(holder.optimizer, torch.optim.Optimizer) and not holder.in_framework
    return plain and (of_torch or not several)


def _copied(optimizer: Any, group: CountedOptions) -> Any:
    """Return an optimizer of the same class with one group, and no state yet.

    Raises:
        ValueError: its attributes hold too much to be copied.
    """
    trial = object.__new__(type(optimizer))
    attributes = {
        name: attribute
        for name, attribute in vars(optimizer).items()
        # A scheduler puts a `step` of the optimizer itself there.
        if name not in ("param_groups", "state") and not callable(attribute)
    }
    elements = sum(tensor.numel() for tensor in _tensors(attributes))
    if elements > COPIED_TENSORS:
        raise ValueError(f"{elements} elements in attributes")
    vars(trial).update(copy.deepcopy(attributes))
    for name, attribute in vars(trial).items():
        if name.endswith("_hooks") and isinstance(attribute, OrderedDict):
            attribute.clear()
    trial.state = defaultdict(dict)
    trial.param_groups = [group]
    return trial


def _tensors(attribute: Any) -> Iterator[Tensor]:
    if isinstance(attribute, Tensor):
        yield attribute
    elif isinstance(attribute, Mapping):
        for member in attribute.values():
            yield from _tensors(member)
    elif isinstance(attribute, (list, tuple, set)):
        for member in attribute:
            yield from _tensors(member)
