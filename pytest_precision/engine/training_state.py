"""Training state: what outlives a step, in one list for engines and for scripts."""

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
    """The state of a training loop that outlives a step, and what has changed in it.

    Attributes:
        since: what it was at the start, and what has changed from then on.
    """

    since: Since

    def observe(self) -> Iterator[Observation]:
        """Yield everything that outlives a step, except hyperparameters."""
        yield from self.optimizers_state()
        yield from self.weights()
        yield from self.flags()
        yield from self.loss_scale()
        yield from rng()
        yield from self.beside()
        yield from self.since.policies.observe(self.policies())
        yield from self.since.generators.observe(generators())
        yield from self.since.attributes.observe(self.attributes())

    def begin(self) -> None:
        """Remember the start values of everything that is shown only when it changes."""
        self.since.attributes.begin(self.attributes())
        self.since.policies.begin(self.policies())
        self.since.generators.begin(generators())

    @abstractmethod
    def optimizers_state(self) -> Iterator[Observation]:
        """Yield what optimizers keep, and the weights that they update."""

    @abstractmethod
    def weights(self) -> Iterator[Observation]:
        """Yield what the model holds: parameters, quantized ones too, and buffers."""

    @abstractmethod
    def flags(self) -> Iterator[Observation]:
        """Yield the modes of modules, and parameters whose `requires_grad` has changed."""

    @abstractmethod
    def loss_scale(self) -> Iterator[Observation]:
        """Yield the factor on the loss; see `of_loss_scale`."""

    @abstractmethod
    def beside(self) -> Iterator[Observation]:
        """Yield further tensors beside the model and its optimizer, such as averages."""

    @abstractmethod
    def policies(self) -> Leaves:
        """Yield counters and settings that decide later steps, such as those of a scheduler."""

    @abstractmethod
    def attributes(self) -> Leaves:
        """Yield what the objects of the loop keep in Python."""


class UpdatedTensor(NamedTuple):
    """A tensor that an optimizer updates.

    Attributes:
        tensor: it.
        names: those of the logical tensors in it.
        show: yields the observations of an entry of its state: kind, end of the name, tensor.
        show_weight: yields the weight that the tensor represents.
    """

    tensor: Tensor
    names: Collection[str]
    show: Callable[[str, str, Tensor], Iterator[Observation]]
    show_weight: Callable[[], Iterator[Observation]]


def of_optimizer(
    optimizer: Optimizer, updated: Iterable[UpdatedTensor], grouped: groups.Groups
) -> Iterator[Observation]:
    """Yield the state of an optimizer, and the weights that it updates.

    Args:
        optimizer: it.
        updated: what it updates.
        grouped: its groups, whose steps are shown where they count them for their parameters.
    """
    counted: set[str] = set()
    for one in updated:
        for key, value in groups.state_of(optimizer, one.tensor).items():
            if key == "step":
                counted.update(one.names)
            for suffix, tensor in tensors_in(value):
                yield from one.show(key, suffix, tensor)
        yield from one.show_weight()
    yield from groups.counters(grouped, counted)


def of_loss_scale(state: Mapping[str, float]) -> Iterator[Observation]:
    """Yield the scale of the loss, and the number of steps since it was changed."""
    for name, value in state.items():
        yield whole("loss_scale", name, torch.tensor(value, dtype=torch.float64))


def rng() -> Iterator[Observation]:
    """Yield the state of each of torch's generators: that of the CPU, and that of the device."""
    for kind, state in generator_states().items():
        yield whole("rng", kind, state, local=True)
