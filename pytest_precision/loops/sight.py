"""Sight: everything of a loop that can be seen at one moment, by logical names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine import groups
from pytest_precision.engine.observable import full
from pytest_precision.engine.observation import Observation, piece, tensors_in, whole
from pytest_precision.engine.readable import stored
from pytest_precision.loops.names import LoopNames


class Sight:
    """What the models and the optimizers of a loop hold now.

    Args:
        names: of the tensors.

    Attributes:
        gathers_shards: whether whole tensors are shown rather than shards; a collective.
        optimizers: those that have stepped, in the order of their first steps.
        scaler: of the loss, once it has had an optimizer step.
        unnamed: tensors of optimizers that no module holds, by the place that they are named by.
    """

    def __init__(self, names: LoopNames) -> None:
        self.names = names
        self.gathers_shards = False
        self.optimizers: list[Optimizer] = []
        self.scaler: torch.amp.GradScaler | None = None
        self.unnamed: dict[str, None] = {}

    def meet(self, optimizer: Optimizer) -> bool:
        """Take in an optimizer that steps; return whether it is new."""
        known = any(one is optimizer for one in self.optimizers)
        if not known:
            self.optimizers.append(optimizer)
        return not known

    def used(self, module: nn.Module) -> Iterator[tuple[str, Iterator[Observation]]]:
        """Yield the name of each weight that `module` itself reads, and what is seen of it."""
        for name, parameter in self.names.own(module):
            yield name, self._show("used_param", name, parameter)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients that lie at parameters of the models, by name."""
        for name, parameter in self.names.parameters():
            if parameter.grad is not None:
                yield name, parameter.grad

    def read_by(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients that an optimizer reads, by name."""
        for name, parameter in self._held(optimizer):
            if parameter.grad is not None:
                yield name, parameter.grad

    def gradient(self, kind: str, name: str, gradient: Tensor) -> Iterator[Observation]:
        """Yield what is seen of one gradient."""
        yield from self._show(kind, name, gradient)

    def numbers(self, optimizer: Optimizer) -> Iterator[Observation]:
        """Yield the learning rate and all other numbers of each parameter of an optimizer."""
        named = [*groups.named(optimizer, self._held(optimizer))]
        yield from groups.rates([(g, names) for g, names in named if g.get("lr") is not None])
        yield from groups.other_numbers(named)

    def all_numbers(self) -> Iterator[Observation]:
        """Yield those of all optimizers."""
        return _first(seen for one in self.optimizers for seen in self.numbers(one))

    def state(self) -> Iterator[Observation]:
        """Yield everything that outlives a step."""
        yield from _first(seen for one in self.optimizers for seen in self.kept_by(one))
        yield from self.model_state()
        if self.scaler is not None:
            scale = {"scale": self.scaler.get_scale()}
            scale["good_steps"] = self.scaler.state_dict().get("_growth_tracker", 0)
            for name, value in scale.items():
                yield whole("loss_scale", name, torch.tensor(value, dtype=torch.float64))

    def model_state(self) -> Iterator[Observation]:
        """Yield what outlives a step and is no optimizer's."""
        for name, parameter in self.names.parameters():
            yield from self._show("param", name, parameter)
        for name, buffer in self.names.buffers():
            yield from self._show("buffer", name, buffer, local=True)
        yield whole("rng", "cpu", torch.get_rng_state(), local=True)

    def kept_by(self, optimizer: Optimizer) -> Iterator[Observation]:
        """Yield what one optimizer keeps: its state, and the weights that it updates."""
        yield from groups.counters(groups.named(optimizer, self._held(optimizer)))
        for name, parameter in self._held(optimizer):
            for key, value in _state_of(optimizer, parameter).items():
                for suffix, tensor in tensors_in(value):
                    yield from self._show(str(key), name + suffix, tensor)
            yield from self._show("master", name, parameter)

    def _held(self, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
        """Yield what an optimizer updates, in its order; unnamed tensors by their place in it."""
        for _ in self.names.parameters():  # some change places with their shards
            pass
        number = next(n for n, one in enumerate(self.optimizers) if one is optimizer)
        first = f"optimizer{number + 1}." if number else ""
        for place, parameter in groups.places(optimizer):
            name = self.names.of(parameter)
            if name is None:
                name = f"{first}{place}"
                self.unnamed[name] = None
            yield name, parameter

    def _show(
        self, kind: str, name: str, tensor: Tensor, *, local: bool = False
    ) -> Iterator[Observation]:
        for held in stored(kind, tensor):
            own = full(held.tensor.detach()) if self.gathers_shards else held.tensor.detach()
            yield piece(held.kind, name, own, local=local or held.local)


def _state_of(optimizer: Optimizer, parameter: Tensor) -> Mapping[Any, Any]:
    kept: Mapping[Any, Any] = optimizer.state.get(parameter, {})
    return kept


def _first(seen: Iterator[Observation]) -> Iterator[Observation]:
    """Leave out what an optimizer shows of another one that is in it."""
    shown = set()
    for one in seen:
        if (one.kind, one.name) not in shown:
            shown.add((one.kind, one.name))
            yield one
