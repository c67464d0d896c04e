"""All state that a training loop carries to its next step, for engines and scripts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.engine import groups
from pytest_precision.engine.attributes import Leaves
from pytest_precision.engine.changes import Since, generators
from pytest_precision.engine.observation import Observation, tensors_in, whole
from pytest_precision.ranks.state.accelerator import generator_states


class TrainingState(ABC):
    """What a loop carries from step to step: weights, optimizer state, loss scale, random states.

    Attributes:
        since: what it was at the start, and what has changed from then on.
    """

    since: Since

    def observe(self) -> Iterator[Observation]:
        """Yield all state carried to the next step, except options of parameter groups."""
        yield from self.optimizers_state()
        yield from self.weights()
        yield from self.flags()
        yield from self.loss_scale()
        yield from rng()
        yield from self.beside()
        yield from self.since.policies.observe(self.policies())
        yield from self.since.generators.observe(generators())
        yield from self.since.attributes.observe(self.attributes())
        yield from self.since.means.observe(self.means())

    def begin(self) -> None:
        """Remember the loop's attributes, schedulers and random states, to find later changes."""
        self.since.attributes.begin(self.attributes())
        self.since.means.begin(self.means())
        self.since.policies.begin(self.policies())
        self.since.generators.begin(generators())

    def starts(self) -> dict[str, dict[str, str]]:
        """Return the first values of tensors that are shown only after a change, by kind.

        How it is computed is left out, so that a comparison takes it for what one side alone has.
        """
        changes = self.since.policies, self.since.generators, self.since.attributes
        return {kind_changes.kind: dict(kind_changes.starts) for kind_changes in changes}

    @abstractmethod
    def optimizers_state(self) -> Iterator[Observation]:
        """Yield the state of the optimizers, and the weights that they update."""

    @abstractmethod
    def weights(self) -> Iterator[Observation]:
        """Yield the parameters, quantized weights and buffers of the model."""

    @abstractmethod
    def flags(self) -> Iterator[Observation]:
        """Yield each module's training mode, and each changed `requires_grad` of a parameter."""

    @abstractmethod
    def loss_scale(self) -> Iterator[Observation]:
        """Yield the dynamic loss scale and its count of steps without an overflow."""

    @abstractmethod
    def beside(self) -> Iterator[Observation]:
        """Yield tensors beside model and main optimizer, such as averages of the weights."""

    @abstractmethod
    def policies(self) -> Leaves:
        """Yield (name, value) for the counters and settings of schedulers and loss scalers."""

    @abstractmethod
    def attributes(self) -> Leaves:
        """Yield (name, value) for Python attributes of the model, the optimizers and the loop."""

    @abstractmethod
    def means(self) -> Leaves:
        """Yield (name, value) for numbers of hooks, and for options of how an update is computed.

        Two sides that compute the same may begin to differ in them.
        """


class UpdatedTensor(NamedTuple):
    """A tensor that an optimizer updates, its parameters' names, and functions that observe it.

    Attributes:
        tensor: the tensor.
        names: those of the logical tensors in it.
        show: yields the observations of an entry of its state: kind, end of the name, tensor.
        show_weight: yields the weight that the tensor represents.
    """

    tensor: Tensor
    names: Collection[str]
    show: Callable[[str, str, Tensor], Iterator[Observation]]
    show_weight: Callable[[], Iterator[Observation]]


def of_optimizer(
    optimizer: Optimizer, updated_tensors: Iterable[UpdatedTensor], grouped: groups.Groups
) -> Iterator[Observation]:
    """Yield an optimizer's state, the weights that it updates, and its groups' step counts.

    Args:
        optimizer: the optimizer to read.
        updated_tensors: what it updates.
        grouped: its groups, whose steps are shown where they count them for their parameters.
    """
    counted: set[str] = set()
    for updated_tensor in updated_tensors:
        for key, value in groups.state_of(optimizer, updated_tensor.tensor).items():
            if key == "step":
                counted.update(updated_tensor.names)
            for suffix, tensor in tensors_in(value):
                yield from updated_tensor.show(key, suffix, tensor)
        yield from updated_tensor.show_weight()
    yield from groups.counters(grouped, counted)


def of_loss_scale(state: Mapping[str, float]) -> Iterator[Observation]:
    """Yield the entries of a loss scaler's state: the scale, and its count of good steps."""
    for name, value in state.items():
        yield whole("loss_scale", name, torch.tensor(value, dtype=torch.float64))


def rng() -> Iterator[Observation]:
    """Yield the states of torch's random generators on the CPU and on the device."""
    for kind, state in generator_states().items():
        yield whole("rng", kind, state, local=True)
