"""Find a loop's schedulers, weight averages and other Python state in memory.

Of each optimizer, what it has updated is remembered, even if it steps group by group. DeepSpeed's
ZeRO puts one group after the other into its optimizer and has it step, so that a step of the loop
has as many updates as there are groups; ZeRO 3 takes the group out again.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision.engine import attributes, further, groups
from pytest_precision.engine.attributes import Leaves
from pytest_precision.engine.changes import Changes, Since
from pytest_precision.engine.observation import Observation
from pytest_precision.engine.training_state import TrainingState, of_loss_scale
from pytest_precision.recorders.scripts.loop_names import LoopNames
from pytest_precision.recorders.scripts.model_copies import Copies

_DICTS = dict, OrderedDict
"""In what a loop keeps tensors by name; `state_dict` returns the second. Other subclasses may do
anything if they are asked for their values."""

MemberGroup = tuple[Mapping[str, Any], list[Tensor]]
"""A group with the parameters that are or were in it."""


class Updates:
    """Stores which parameters each optimizer updated in its last step of the loop."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Optimizer, list[list[MemberGroup]]] = WeakKeyDictionary()
        # Keeps each tensor alive, and with it its id.
        self._places: dict[int, tuple[str, Tensor]] = {}

    def add(self, optimizer: Optimizer, *, goes_on: bool) -> int:
        """Note which parameters an optimizer is about to update, so that they have names.

        Args:
            optimizer: whose step begins.
            goes_on: whether it has updated other parameters in the same train step before.

        Returns:
            The number of its updates before this one in this step.
        """
        updates = self._last.setdefault(optimizer, [])
        if not goes_on:
            updates.clear()
        updates.append([(group, [*tensors]) for group, tensors in groups.group_members(optimizer)])
        together: dict[int, MemberGroup] = {}
        for group, tensors in self._groups(optimizer):
            together.setdefault(id(group), (group, []))[1].extend(tensors)
        for place, parameter in groups.places(together.values()):
            self._places.setdefault(id(parameter), (place, parameter))
        return len(updates) - 1

    def lacks(self, optimizer: Optimizer) -> bool:
        """Return whether all parameters of an optimizer's last step have left its groups."""
        present = _ids(groups.group_members(optimizer))
        return bool(present) and not present & _ids(self._groups(optimizer))

    def members(self, optimizer: Optimizer, *, whole: bool) -> Iterator[MemberGroup]:
        """Yield each group's parameters; if `whole`, also those removed since the last step."""
        present = [(group, [*tensors]) for group, tensors in groups.group_members(optimizer)]
        yield from present
        if whole:
            in_groups = _ids(present)
            for group, tensors in self._groups(optimizer):
                yield group, [parameter for parameter in tensors if id(parameter) not in in_groups]

    def placed(self, optimizer: Optimizer, *, whole: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield (place, parameter), the place at its first update, as `param_groups.0.params.3`."""
        for place, parameter in groups.places(self.members(optimizer, whole=whole)):
            yield self._places.get(id(parameter), (place,))[0], parameter

    def _groups(self, optimizer: Optimizer) -> Iterator[MemberGroup]:
        return chain.from_iterable(self._last.get(optimizer, ()))


def _ids(members: groups.Members) -> set[int]:
    return {id(parameter) for _, tensors in members for parameter in tensors}


class LoopObjects(TrainingState):
    """Finds a loop's schedulers, weight averages and other Python state in memory.

    What no hook tells of is looked for in memory at the first update and after steps that are ever
    further apart: the first, the second, the fourth.

    Attributes:
        names: of the tensors of the models.
        optimizers: those that have stepped, in the order of their first steps.
        updates: of the optimizers.
        copies: of the models.
        scaler: of the loss, once it has had an optimizer step.
    """

    def __init__(self) -> None:
        self.names = LoopNames()
        self.optimizers: list[Optimizer] = []
        self.updates = Updates()
        self.copies = Copies(self.names)
        self.scaler: torch.amp.GradScaler | None = None
        self.since = Since()
        self._left = Changes("attribute")
        self._schedulers: list[LRScheduler] = []
        self._steps = 0

    def begin(self) -> None:
        """Find schedulers and weight averages, and store their state before the first update."""
        if not self.since.attributes.begun:
            gc.collect()  # what an earlier run has left is none of this one's
        self.look()
        super().begin()

    def end_step(self) -> None:
        """Look for new schedulers and weight averages, after steps 1, 2, 4, 8 and so on."""
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:
            self.look()
        if self._steps == 1:
            self._left.begin(self._gradients())

    def observe_end(self) -> Iterator[Observation]:
        """Yield whether gradients are non-zero when the loop ends, if that changed after step 1."""
        yield from self._left.observe(self._gradients())

    def look(self) -> None:
        """Find learning rate schedulers and copies of the weights in memory."""
        ids = {id(optimizer) for optimizer in self.optimizers}
        schedulers, holders = found_in_memory()
        schedulers = [*dict.fromkeys([*self._schedulers, *schedulers])]
        self._schedulers = [scheduler for scheduler in schedulers if id(scheduler.optimizer) in ids]
        tensors = {id(tensor) for optimizer in self.optimizers for tensor in _tensors_of(optimizer)}
        self.copies.look(holders, without=tensors)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield (name without wrappers, module) for all modules of all models."""
        for root in self.names.roots:
            yield from self.names.modules(root)

    def loss_scale(self) -> Iterator[Observation]:
        """Yield the state of the loop's `GradScaler`; nothing if it has none."""
        if self.scaler is not None:
            steps = self.scaler.state_dict().get("_growth_tracker", 0)
            yield from of_loss_scale({"scale": self.scaler.get_scale(), "good_steps": steps})

    def beside(self) -> Iterator[Observation]:
        """Yield tensors outside the trained models: weight averages and untrained modules."""
        return self.copies.observe()

    def starts(self) -> dict[str, dict[str, str]]:
        """Return the first values of tensors that are shown only after a change, by kind."""
        return super().starts() | {"average": self.copies.starts()}

    def policies(self) -> Leaves:
        """Yield (name, value) for counters and settings of schedulers and `GradScaler`."""
        yield from further.policies(self._schedulers)
        if self.scaler is not None:
            yield from attributes.numbers_of(self.scaler)

    def present_policies(self) -> Iterator[Observation]:
        """Yield the counters and settings of schedulers and `GradScaler`, changed or not."""
        return self.since.policies.present(self.policies())

    def attributes(self) -> Leaves:
        """Yield (name, value) for Python attributes of modules and optimizers."""
        yield from attributes.attributes_of_modules(self.modules())
        yield from self._numbered_leaves(attributes.attributes_of_optimizer)
        yield from self._numbered_leaves(groups.own_steps)

    def means(self) -> Leaves:
        """Yield (name, value) for numbers of hooks and switches such as `foreach`."""
        yield from attributes.hooks_of_modules(self.modules())
        yield from self._numbered_leaves(groups.switches)

    def _numbered_leaves(self, read: Callable[[Optimizer], Leaves]) -> Leaves:
        """Yield the values read from each optimizer, under names that number the optimizers."""
        for number, optimizer in enumerate(self.optimizers):
            which = f" {number + 1}" if number else ""
            yield from ((name + which, leaf) for name, leaf in read(optimizer))

    def _gradients(self) -> Iterator[tuple[str, Any]]:
        """Yield one named value: whether any parameter has a gradient that is not zero."""
        # What functional_call lends to a model is no leaf, and torch warns of reading its gradient.
        leaves = (leaf for _, leaf in self.names.parameters() if leaf.is_leaf)
        gradients = (parameter.grad for parameter in leaves)
        left = any(bool(gradient.any()) for gradient in gradients if gradient is not None)
        yield "gradients left at the end of a step", left


def _tensors_of(optimizer: Optimizer) -> Iterator[Tensor]:
    for fields in optimizer.state.values():
        values: Iterable[Any] = fields.values() if isinstance(fields, dict) else (fields,)
        yield from (value for value in values if isinstance(value, Tensor))
    yield from groups.updated_tensors(optimizer)


def found_in_memory() -> tuple[list[LRScheduler], list[Any]]:
    """Return the schedulers, and the modules and tensor containers, that exist in memory.

    A heap has half a million objects, so one pass serves all that is looked for.

    Returns:
        learning rate schedulers; modules, and lists and dicts whose first value is a tensor. Their
        order differs from run to run.
    """
    schedulers = {*_kinds_of(LRScheduler)}
    modules = {*_kinds_of(nn.Module)}
    classes = schedulers | modules | {list, *_DICTS}
    few = [candidate for candidate in gc.get_objects() if type(candidate) in classes]
    return (
        [candidate for candidate in few if type(candidate) in schedulers],
        [
            candidate
            for candidate in few
            if type(candidate) in modules or _begins_with_tensor(candidate)
        ],
    )


def _kinds_of(base: type) -> Iterator[type]:
    """Yield a class and all its subclasses."""
    yield base
    below: list[type] = base.__subclasses__()
    for kind in below:
        yield from _kinds_of(kind)


def _begins_with_tensor(candidate: Any) -> bool:
    if type(candidate) is list:
        return bool(candidate) and isinstance(candidate[0], Tensor)
    return type(candidate) in _DICTS and isinstance(next(iter(candidate.values()), None), Tensor)
