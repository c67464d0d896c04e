"""Find optimizers that train nothing, and gradients that no optimizer reads.

Whether a gradient is left unread is known when the run is over: an optimizer may step later than
the others. Some parts are frozen by not being given to an optimizer, so that an unread gradient is
a note; it is a mistake where an optimizer steps that has nothing to train. Where an optimizer
updates tensors that no module holds, such as masters, others copy the gradients to them.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.engine.groups import updated_tensors
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge

SEARCHED_STEPS = 2
"""Steps of each optimizer before which gradients of all parameters are looked for."""


class UnreadGradients(RunJudge):
    """Notes parameters whose gradient no optimizer ever reads."""

    rule: ClassVar[str] = "unread_gradient"
    kind: ClassVar[str] = "grad"
    fails: ClassVar[bool] = False

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        # By id; the tensors are there, so that no other one gets it.
        self._with_gradient: dict[int, Tensor] = {}
        self._members: dict[int, Tensor] = {}
        self._trains: dict[Optimizer, bool] = {}
        self._steps: dict[Optimizer, int] = {}

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Remember what an optimizer holds, and which parameters have a gradient."""
        count = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        members = updated_tensors(optimizer)
        self._members |= {id(tensor): tensor for tensor in members}
        # One that runs others holds what they hold, or nothing.
        trains = any(tensor.requires_grad or tensor.grad is not None for tensor in members)
        self._trains[optimizer] = self._trains.get(optimizer, False) or trains
        if count <= SEARCHED_STEPS:
            parameters = (parameter for _, parameter in self.run.parameters())
            self._with_gradient |= {
                id(parameter): parameter for parameter in parameters if parameter.grad is not None
            }

    def over(self) -> None:
        """Note the gradients that no optimizer of the run has read."""
        unread_tensors = self._unread()
        if unread_tensors:
            self.find(self._words(), unread_tensors[0], len(unread_tensors) - 1)

    def _unread(self) -> list[Tensor]:
        named = {id(parameter) for _, parameter in self.run.parameters()}
        if not named >= self._members.keys() or self._idle() is not None:
            return []
        return self._all_unread()

    def _all_unread(self) -> list[Tensor]:
        return [tensor for key, tensor in self._with_gradient.items() if key not in self._members]

    def _idle(self) -> Optimizer | None:
        return next((optimizer for optimizer, trains in self._trains.items() if not trains), None)

    def _words(self) -> str:
        return "{name} has a gradient that no optimizer reads"


class IdleOptimizers(UnreadGradients):
    """Finds optimizers that have nothing to train while parameters have unread gradients."""

    rule: ClassVar[str] = "idle_optimizer"
    fails: ClassVar[bool] = True

    def _unread(self) -> list[Tensor]:
        return [] if self._idle() is None else self._all_unread()

    def _words(self) -> str:
        return (
            f"{type(self._idle()).__name__} has no parameter to train, while "
            "{name} has a gradient that no optimizer reads"
        )
