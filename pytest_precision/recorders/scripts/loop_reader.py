"""Read the present weights, gradients and options of a loop, by parameter name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine import attributes, groups
from pytest_precision.engine.modes import modes, module_settings, thawed, trained
from pytest_precision.engine.observation import Observation
from pytest_precision.engine.training_state import UpdatedTensor, of_optimizer
from pytest_precision.errors import expect_type, expected_but_got
from pytest_precision.recorders.scripts.located import (
    Locate,
    LocatedTensor,
    PieceFields,
    PieceOfTensor,
    located,
)
from pytest_precision.recorders.scripts.loop_objects import LoopObjects
from pytest_precision.recorders.scripts.matched_places import FlattenedParameters
from pytest_precision.recorders.scripts.recorded_part import RecordedPart
from pytest_precision.recorders.weights import Weight

NamedObservations = Iterator[tuple[str, Iterator[Observation]]]
"""What is seen of one tensor after the other, each with a name that tells it apart."""


class LoopReader(LoopObjects):
    """Reads the present tensors and options of a loop's models and optimizers.

    Args:
        part: which tensors are looked at, and in which steps; all unless given.

    Attributes:
        part: as given.
        step: number of the step that runs, whether it is written or not.
        locate: says which pieces of logical tensors lie in a parameter.
        unnamed: tensors of optimizers that no module holds, by the place that they are named by.
        matched: those of them whose values say where they lie, as this rank has them.
    """

    def __init__(self, part: RecordedPart | None = None) -> None:
        super().__init__()
        self.part = part or RecordedPart()
        self.step = 1
        self.locate: Locate | None = None
        self.unnamed: dict[str, None] = {}
        self.matched: dict[str, list[PieceFields]] = {}
        # Keeps each tensor alive, and with it its id.
        self._matches: dict[int, tuple[Tensor, list[PieceFields] | None]] = {}

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Set the step number for which tensors are read, inside the context."""
        running, self.step = self.step, step
        try:
            yield
        finally:
            self.step = running

    def take_in(self, optimizer: Optimizer) -> None:
        """Register an optimizer at its first step, in place of one whose parameters it replaces."""
        if optimizer in self.optimizers:
            return
        gone = self._replaced_by(optimizer)
        self.optimizers = [earlier for earlier in self.optimizers if earlier not in gone]
        self.optimizers.append(optimizer)
        if gone:
            self.look()  # the schedulers of the others are gone, too

    def names_all_of(self, optimizer: Optimizer) -> bool:
        """Return whether every parameter of an optimizer is in a known model."""
        return None not in self._names(optimizer)

    def used(self, module: nn.Module) -> NamedObservations:
        """Yield (name, observations) of weights in `module` itself that its forward reads."""
        for name, parameter in self.names.own(module):
            yield name, self._show("used_param", self._held(name, parameter), parameter)

    def gradients(self) -> NamedObservations:
        """Yield the present gradient of each parameter of the models."""
        for name, parameter in self.names.parameters():
            if parameter.grad is not None:
                located_tensor = self._held(name, parameter)
                yield name, self._show("reduced_grad", located_tensor, parameter.grad)

    def read_by(self, optimizer: Optimizer) -> NamedObservations:
        """Yield the gradients that an optimizer's step is about to read."""
        for located_tensor in self._held_by(optimizer):
            gradient = located_tensor.tensor.grad
            if gradient is not None:
                yield located_tensor.name, self._show("final_grad", located_tensor, gradient)

    def accumulated(self, name: str, parameter: Tensor, microbatch: int) -> NamedObservations:
        """Yield a parameter's gradient as it is after a microbatch's backward."""
        if parameter.grad is not None:
            after = f" after microbatch{microbatch}"
            located_tensor = self._held(name, parameter)
            yield name + after, self._show("grad", located_tensor, parameter.grad, suffix=after)

    def given(
        self, kind: str, name: str, tensor: Tensor, of: PieceOfTensor | None, *, local: bool
    ) -> Iterator[Observation]:
        """Yield records of a tensor that the script passes to `record.see`.

        Raises:
            TypeError: it is no tensor.
            ValueError: it has not as many elements as `of` says, or a piece is local.
        """
        expect_type("tensor", tensor, Tensor, "a tensor", "wrap a number in torch.tensor")
        if local and of is not None:
            raise ValueError(
                expected_but_got(
                    "of= or local=True", "both", "leave local out for a piece of a sharded tensor"
                )
            )
        located_tensor = located(name, tensor, None if of is None else [(name, *of)])
        return located_tensor.show(kind, tensor, local=local)

    def numbers(self, optimizer: Optimizer, *, whole: bool = False) -> Iterator[Observation]:
        """Yield one optimizer's learning rates and other options, one value per parameter.

        Args:
            optimizer: it.
            whole: show what its last step has updated, too, if it is not in its groups now.
        """
        named = [*self._groups(optimizer, whole)]
        yield from groups.learning_rates(named)
        yield from groups.other_numbers(named)

    def all_numbers(self) -> Iterator[Observation]:
        """Yield all optimizers' learning rates and other options, one value per parameter."""
        return shown_once(
            observation
            for optimizer in self.optimizers
            for observation in self.numbers(optimizer, whole=True)
        )

    def optimizers_state(self) -> Iterator[Observation]:
        """Yield the state of all optimizers, each tensor once even if two optimizers share it."""
        states = (self.kept_by(optimizer, whole=True) for optimizer in self.optimizers)
        return shown_once(chain.from_iterable(states))

    def weights(self) -> Iterator[Observation]:
        """Yield the parameters, buffers and extra state of the models."""
        return chain.from_iterable(observations for _, observations in self.weights_of_models())

    def weights_of_models(self) -> NamedObservations:
        """Yield (name, observations) of each parameter, buffer and extra state."""
        for name, parameter in self.names.parameters():
            yield name, self._show("param", self._held(name, parameter), parameter)
        for name, buffer in self.names.buffers():
            yield name, self._show("buffer", LocatedTensor(name, buffer), buffer, local=True)
        for name, module in self.names.saving_more():
            yield f"extra state of {name}", attributes.extra_state([(name, module)])

    def flags(self) -> Iterator[Observation]:
        """Yield training modes, and those settings and `requires_grad` that have changed by now."""
        for root, prefix in self.names.roots.items():
            yield from modes(self.names.modules(root), prefix, self.since.settings)
        yield from thawed(trained(self.names.parameters()), self.since.trained)

    def begin(self) -> None:
        """Store the initial modes, settings and attributes, so that only changes are recorded."""
        super().begin()
        self.since.settings = {**module_settings(self.modules()), **self.since.settings}
        self.since.trained = trained(self.names.parameters()) | self.since.trained

    def kept_by(self, optimizer: Optimizer, *, whole: bool = False) -> Iterator[Observation]:
        """Yield the state tensors of one optimizer, and the weights that the optimizer updates.

        With `whole`, those that its last step has updated and its groups have lost are included.
        """
        held_by = self._held_by(optimizer, whole)
        updated = (
            self._updated(located_tensor)
            for located_tensor in held_by
            if self._moves(located_tensor.tensor, optimizer)
        )
        yield from of_optimizer(optimizer, updated, self._groups(optimizer, whole))
        yield from attributes.state_by_name(optimizer)

    def updated_by(self, optimizer: Optimizer) -> Iterator[Weight]:
        """Yield each tensor that an optimizer updates, with a function that reads its shards."""
        for located_tensor in self._held_by(optimizer):
            yield Weight(
                located_tensor.name,
                located_tensor.tensor,
                located_tensor.tensor.detach,
                located_tensor.parts,
            )

    def _updated(self, located_tensor: LocatedTensor) -> UpdatedTensor:
        def show(kind: str, suffix: str, tensor: Tensor) -> Iterator[Observation]:
            return self._show(kind, located_tensor, tensor, suffix=suffix)

        weight = partial(self._show, "master", located_tensor, located_tensor.tensor)
        return UpdatedTensor(located_tensor.tensor, located_tensor.names, show, weight)

    def _replaced_by(self, optimizer: Optimizer) -> list[Optimizer]:
        """Return the known optimizers whose parameters were replaced by those of a new one."""
        names = self._names(optimizer)
        gone = []
        for old in self.optimizers:
            before = self._names(old)
            shared = (names.keys() & before.keys()) - {None}
            if shared and all(names[name] != before[name] for name in shared):
                gone.append(old)
        return gone

    def _names(self, optimizer: Optimizer) -> dict[str | None, int]:
        """Map an optimizer's parameters, by name (None for nameless ones), to their Python ids."""
        self.names.learn()
        return {self.names.of(tensor): id(tensor) for tensor in groups.updated_tensors(optimizer)}

    def _groups(self, optimizer: Optimizer, whole: bool) -> groups.Groups:
        held_by = self._held_by(optimizer, whole)
        names = (
            located_tensor.names * self._moves(located_tensor.tensor, optimizer)
            for located_tensor in held_by
        )
        return groups.groups_with_names(self.updates.members(optimizer, whole=whole), names)

    def _moves(self, tensor: Tensor, optimizer: Optimizer) -> bool:
        """Return whether an optimizer may update a tensor; false for a frozen parameter."""
        used = tensor.requires_grad or tensor.grad is not None or tensor in optimizer.state
        return used or self.names.of(tensor) is None  # masters may require no gradient

    def prefix_of(self, optimizer: Optimizer) -> str:
        """Return the prefix of an optimizer's names by position; empty for the first optimizer."""
        number = self.optimizers.index(optimizer)
        return f"optimizer{number + 1}." if number else ""

    def _held_by(self, optimizer: Optimizer, whole: bool = False) -> Iterator[LocatedTensor]:
        """Yield an optimizer's parameters in order; nameless ones are named by position."""
        self.names.learn()
        first = self.prefix_of(optimizer)
        parameters = FlattenedParameters(self.names.parameters())
        for place, parameter in self.updates.placed(optimizer, whole=whole):
            name = self.names.of(parameter)
            located_tensor = self._held(name or f"{first}{place}", parameter)
            if name is None and located_tensor.pieces is None:
                pieces = self._matched_pieces(located_tensor.name, parameter, parameters)
                located_tensor = located(located_tensor.name, parameter, pieces)
                if pieces is None:
                    self.unnamed[located_tensor.name] = None
            yield located_tensor

    def _held(self, name: str, parameter: Tensor) -> LocatedTensor:
        pieces = None if self.locate is None else self.locate(parameter)
        return located(name, parameter, self.names.pieces(parameter) if pieces is None else pieces)

    def _matched_pieces(
        self, name: str, part: Tensor, parameters: FlattenedParameters
    ) -> list[PieceFields] | None:
        """Return the pieces in a tensor that no module holds, by its values at first sight."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return None
        if id(part) not in self._matches:
            pieces = parameters.pieces(part, dist.get_rank())
            self._matches[id(part)] = part, pieces
            if pieces is not None:
                self.matched[name] = pieces
        return self._matches[id(part)][1]

    def _show(
        self, kind: str, located_tensor: LocatedTensor, tensor: Tensor, **how: Any
    ) -> Iterator[Observation]:
        observations = located_tensor.show(kind, tensor, **how)
        return self.part.of(self.step, located_tensor.names, observations)


def shown_once(observations: Iterator[Observation]) -> Iterator[Observation]:
    """Yield observations, without repeats of the same kind, name and range in the tensor."""
    shown = set()
    for observation in observations:
        # A tensor may hold several pieces of another one.
        key = observation.kind, observation.name, observation.place
        if key not in shown:
            shown.add(key)
            yield observation
