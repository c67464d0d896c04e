"""Read all state that an engine's model, optimizers and attributes carry to the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine import attributes, further, groups
from pytest_precision.engine.attributes import Leaves
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.changes import Since
from pytest_precision.engine.modes import modes, thawed, trained
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.engine.quantizing import StepScaling, quantized_state
from pytest_precision.engine.training_state import (
    TrainingState,
    UpdatedTensor,
    of_loss_scale,
    of_optimizer,
)
from pytest_precision.engine.values import package_of
from pytest_precision.matrix.tensor_key import unwrapped

if TYPE_CHECKING:
    from pytest_precision.engine.observable import Observable

ENGINE_ELSEWHERE = frozenset({"capture", "cell", "scaler", "workload"})
"""Attributes of an engine that are observed as a kind of their own, or that it is told."""


class EngineState(TrainingState):
    """Reads all that an engine carries from one step to the next, as observations, at one moment.

    The model is walked through once for all of them: names take longer to find than most tensors.

    Args:
        engine: the engine to read.
        capture: says whether shards are gathered.
        since: what it was at the start.
    """

    def __init__(self, engine: Observable, capture: Capture, since: Since) -> None:
        self._engine = engine
        self._capture = capture
        self.since = since

    @cached_property
    def _parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [*self._engine.model.named_parameters()]

    @cached_property
    def _optimized(self) -> list[tuple[str, nn.Parameter]]:
        engine = self._engine
        if engine.optimized_model is engine.model:
            return self._parameters
        return [*engine.optimized_model.named_parameters()]

    @cached_property
    def _masters(self) -> list[tuple[str, Tensor]]:
        return [*self._engine.masters()]

    @cached_property
    def _modules(self) -> list[tuple[str, nn.Module]]:
        return [*self._engine.model.named_modules()]

    @cached_property
    def _further_optimizers(self) -> list[Optimizer]:
        optimized = {id(parameter) for _, parameter in self._optimized}
        engine = self._engine
        return [*further.optimizers(vars(engine), engine.optimizer, optimized)]

    def optimizers_state(self) -> Iterator[Observation]:
        """Yield the state of the main optimizer, and the weights that it updates."""
        return self._of(self._engine.optimizer, self._masters)

    def weights(self) -> Iterator[Observation]:
        """Yield the parameters, quantized weights and buffers of the model."""
        engine = self._engine
        capture = self._capture
        for name, parameter in self._parameters:
            yield from engine.show("param", name, parameter, capture)
        for kind, name, tensor in quantized_state(engine.model):
            yield from engine.show(kind, name, tensor, capture, local=kind == "recorded_amax")
        for prefix, module in self._modules:
            # The buffers of delayed scaling are quantized state.
            if not isinstance(module, StepScaling):
                for name, buffer in module.named_buffers(unwrapped(prefix), recurse=False):
                    yield from engine.show("buffer", name, buffer, capture, split=False, local=True)

    def flags(self) -> Iterator[Observation]:
        """Yield which modules are in training mode, and whose `requires_grad` has changed."""
        yield from modes(self._engine.named_modules(), start=self.since.settings)
        yield from thawed(self.gets_gradients(), self.since.trained)

    def loss_scale(self) -> Iterator[Observation]:
        """Yield the state of the engine's dynamic loss scaler; nothing without one."""
        scaler = self._engine.scaler
        return of_loss_scale({} if scaler is None else scaler.state_dict())

    def beside(self) -> Iterator[Observation]:
        """Yield tensors of further optimizers, averages of weights, and modules' extra state."""
        engine = self._engine
        names = {id(p): name for name, p in self._optimized}
        for optimizer in self._further_optimizers:
            named_parameters = (
                (names[id(p)], p) for _, members in groups.group_members(optimizer) for p in members
            )
            yield from self._of(optimizer, named_parameters)
        # A wrapper may save more than tensors, too, so that none of the two is left out.
        modules = ((unwrapped(path), module) for path, module in self._modules)
        yield from attributes.extra_state(modules)
        for number, optimizer in attributes.optimizers_in(engine.optimizer):
            yield from attributes.state_by_name(optimizer, number)
        trained_ids = {id(p) for _, p in (*self._parameters, *self._masters)}
        for name, module in further.further_modules(vars(engine), trained_ids):
            for path, tensor in further.average(name, module):
                yield whole("average", path, tensor)

    def policies(self) -> Leaves:
        """Yield (name, value) for the counters and settings of learning rate schedulers."""
        return further.policies(vars(self._engine).values())

    def attributes(self) -> Leaves:
        """Yield (name, value) for Python attributes of the model, the optimizers and the engine."""
        engine = self._engine
        yield from attributes.attributes_of_modules(self._modules)
        beside = (("", optimizer) for optimizer in self._further_optimizers)
        for number, optimizer in (*attributes.optimizers_in(engine.optimizer), *beside):
            yield from attributes.attributes_of_optimizer(optimizer, number)
            yield from ((name + number, leaf) for name, leaf in groups.own_steps(optimizer))
        packages = {package_of(kind) for kind in type(engine).__mro__} - {"builtins"}
        for name, holder in (
            ("the engine", engine),
            ("the workload", vars(engine).get("workload")),
        ):
            if holder is not None:
                elsewhere = engine.passing | ENGINE_ELSEWHERE
                yield from further.plain_values(name, vars(holder), elsewhere, packages)

    def means(self) -> Leaves:
        """Yield (name, value) for numbers of hooks and switches such as `foreach`."""
        yield from attributes.hooks_of_modules(self._modules)
        for optimizer in (self._engine.optimizer, *self._further_optimizers):
            yield from groups.switches(optimizer)

    def gets_gradients(self) -> dict[str, bool]:
        """Return the `requires_grad` of each parameter and optimizer-updated tensor, by name."""
        updated: Iterator[tuple[str, Tensor]] = chain(self._optimized, self._masters)
        masters = ((f"the master of {unwrapped(name)}", master) for name, master in updated)
        weights = ((unwrapped(name), weight) for name, weight in self._parameters)
        return trained(weights) | trained(masters)

    def all_groups(self) -> list[groups.NamedGroup]:
        """Return the parameter groups of all optimizers, each with its parameters' names."""
        more = map(self._groups_of, self._further_optimizers)
        return [*self._engine.named_groups(), *chain.from_iterable(more)]

    def _of(
        self, optimizer: Optimizer, masters: Iterable[tuple[str, Tensor]]
    ) -> Iterator[Observation]:
        counts = "step" not in self._engine.unobservable
        updated = (self._updated(optimizer, *named) for named in masters)
        return of_optimizer(optimizer, updated, self._groups_of(optimizer) if counts else ())

    def _updated(self, optimizer: Optimizer, name: str, parameter: Tensor) -> UpdatedTensor:
        engine = self._engine
        capture = self._capture
        names = [part_name for part_name, _ in engine.logical_parts(name, parameter)]

        def show(kind: str, suffix: str, tensor: Tensor) -> Iterator[Observation]:
            # A step counter or a scale is no tensor of the parameter's elements. A counter is that
            # of each logical tensor; a scale of several would not be that of one of them.
            if tensor.shape == parameter.shape:
                yield from engine.show(kind, name + suffix, tensor, capture)
                return
            for part_name in names if len(names) == 1 or kind == "step" else [name]:
                yield from engine.show(kind, part_name + suffix, tensor, capture, split=False)

        def show_weight() -> Iterator[Observation]:
            first = optimizer is engine.optimizer
            weight = engine.effective(parameter) if first else parameter
            return engine.show("master", name, weight, capture)

        return UpdatedTensor(parameter, names, show, show_weight)

    def _groups_of(self, optimizer: Optimizer) -> groups.Groups:
        engine = self._engine
        if optimizer is engine.optimizer:
            return engine.named_groups()
        names = {id(p): name for name, p in self._optimized}
        members = [*groups.group_members(optimizer)]
        updated = (
            [name for name, _ in engine.logical_parts(names[id(parameter)], parameter)]
            for _, parameters in members
            for parameter in parameters
        )
        return groups.groups_with_names(members, updated)
