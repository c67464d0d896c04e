"""Beside: what changes in a loop and is no tensor of its models or of its optimizers."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision.engine import attributes, further, groups
from pytest_precision.engine.changes import Changes, generators
from pytest_precision.engine.modes import Settings, settings, thawed, trained
from pytest_precision.engine.observation import Observation
from pytest_precision.recorders.scripts.copies import Copies
from pytest_precision.recorders.scripts.names import LoopNames


class Beside:
    """Shows schedulers, scalers, averages, generators and what Python's objects keep.

    What no hook tells of is looked for in memory at the first update and after steps that are ever
    further apart: the first, the second, the fourth.

    Args:
        names: of the models.
        optimizers: those that have stepped; the list grows.
    """

    def __init__(self, names: LoopNames, optimizers: Sequence[Optimizer]) -> None:
        self._names, self._optimizers = names, optimizers
        self._attributes, self._policies = Changes("attribute"), Changes("policy")
        self._generators, self._left = Changes("host_rng"), Changes("attribute")
        self.copies = Copies(names)
        self.scaler: torch.amp.GradScaler | None = None
        self.settings: Settings = {}
        self._trained: dict[str, bool] = {}
        self._schedulers: list[LRScheduler] = []
        self._steps = 0

    def begin(self) -> None:
        """Take in what there is before an update of the first step."""
        self._look()
        self._attributes.begin(self._kept())
        self._policies.begin(self._counted())
        self._generators.begin(generators())
        self.settings = {**settings(self._modules()), **self.settings}
        self._trained = trained(self._names.parameters()) | self._trained

    def end_step(self) -> None:
        """Take in that a step is over, before it is written."""
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:
            self._look()
        if self._steps == 1:
            self._left.begin(self._gradients())

    def observe(self) -> Iterator[Observation]:
        """Yield what outlives a step."""
        yield from thawed(trained(self._names.parameters()), self._trained)
        yield from self.copies.observe()
        yield from self._policies.observe(self._counted())
        yield from self._generators.observe(generators())
        yield from self._attributes.observe(self._kept())

    def observe_end(self) -> Iterator[Observation]:
        """Yield what a next step would find and no step has shown: gradients that were left."""
        yield from self._left.observe(self._gradients())

    def _look(self) -> None:
        """Look for schedulers and averages in memory."""
        own = {id(one) for one in self._optimizers}
        for one in _schedulers():
            if id(one.optimizer) in own and not any(one is other for other in self._schedulers):
                self._schedulers.append(one)
        self.copies.look({id(tensor) for one in self._optimizers for tensor in _tensors_of(one)})

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for root in self._names.roots:
            yield from self._names.modules(root)

    def _counted(self) -> attributes.Leaves:
        yield from further.policies(self._schedulers)
        if self.scaler is not None:
            yield from attributes.numbers_of(self.scaler)

    def _kept(self) -> attributes.Leaves:
        yield from attributes.of_modules(self._modules())
        for number, optimizer in enumerate(self._optimizers):
            which = f" {number + 1}" if number else ""
            for one in (attributes.of_optimizer(optimizer), groups.switches(optimizer)):
                yield from ((name + which, leaf) for name, leaf in one)

    def _gradients(self) -> Iterator[tuple[str, Any]]:
        """Yield whether gradients lie at the parameters that are not zero."""
        gradients = (parameter.grad for _, parameter in self._names.parameters())
        left = any(bool(gradient.any()) for gradient in gradients if gradient is not None)
        yield "gradients left at the end of a step", left


def _tensors_of(optimizer: Optimizer) -> Iterator[Tensor]:
    for held in optimizer.state.values():
        values: Iterable[Any] = held.values() if isinstance(held, dict) else (held,)
        yield from (value for value in values if isinstance(value, Tensor))
    for group in optimizer.param_groups:
        yield from group["params"]


def _schedulers() -> list[LRScheduler]:
    everything = gc.get_objects()
    kinds = {kind for kind in {*map(type, everything)} if issubclass(kind, LRScheduler)}
    return [one for one in everything if type(one) in kinds]
