"""Defects of what a load, an evaluation or the order of the data leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from catalogue import (
    disturbs,
    wrong_gradient,
    wrong_update,
)
from torch import Tensor

from both_sides.entries import (
    EVALUATED,
    RESUMED,
    TWO,
    Named,
    of,
)


class Loads(Named):
    """Loads a state that it has changed."""

    def changed(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.changed(state)


@of("checkpoints", disturbs(2, "lr", "reader.weight", "other tensor", phase="load"), RESUMED)
class LoadsNothing(Named):
    def load(self, folder: Path) -> None:
        pass


@of("checkpoints", disturbs(2, "lr", "reader.weight", "other tensor", phase="load"), RESUMED)
class LoadsModelOnly(Named):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])


@of("checkpoints", disturbs(2, "step", "reader.weight", phase="load"), RESUMED)
class ForgetsSteps(Loads):
    def changed(self, state: dict[str, Any]) -> None:
        for own in self.optimizer.state.values():
            own["step"].zero_()


@of("checkpoints", disturbs(2, "exp_avg_sq", "reader.weight", "zero", phase="load"), RESUMED)
class ForgetsMoments(Loads):
    def changed(self, state: dict[str, Any]) -> None:
        for own in self.optimizer.state.values():
            own["exp_avg_sq"].zero_()


@of("checkpoints", disturbs(2, "master", "reader.weight", "rounded", phase="load"), RESUMED)
class RoundsWeights(Loads):
    @torch.no_grad()
    def changed(self, state: dict[str, Any]) -> None:
        for weight in self.model.parameters():
            weight.copy_(weight.bfloat16())


@of("checkpoints", disturbs(2, "policy", "last_epoch of LambdaLR", phase="load"), RESUMED)
class ForgetsSchedule(Loads):
    def changed(self, state: dict[str, Any]) -> None:
        self.scheduler.last_epoch = 0


class AfterLoad(Named):
    """Trains on other data after a load."""

    loaded = 0

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.loaded = 1


@of(
    "checkpoints",
    wrong_gradient(3, "loss", "microbatch 0", "the microbatches are those of step 1"),
    RESUMED,
)
class DataFromTheStart(AfterLoad):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(step - 2 * self.loaded)


@of(
    "checkpoints",
    wrong_gradient(3, "loss", "microbatch 0", "the microbatches are those of step 4"),
    RESUMED,
)
class SkipsAStep(AfterLoad):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(step + self.loaded)


@of(
    "data order",
    wrong_gradient(1, "loss", "microbatch 0", "the microbatches are those of the evaluation"),
)
class StepBefore(Named):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(max(step - 1, 0))


@of(
    "data order",
    wrong_gradient(1, "loss", "microbatch 0", "the microbatches are those of the evaluation"),
)
class EvaluationData(Named):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(0)


@of(
    "data order",
    wrong_gradient(
        1, "grad", "temperature", "it is of microbatches 0 and 2 and 4 instead of 1 and 3 and 5"
    ),
    TWO,
)
class SameShare(Named):
    """Every rank trains on the share of the first one."""

    def losses(self, step: int) -> Iterator[Tensor]:
        share = self.of_step(step)[:: self.cell.world_size]
        for own, _ in zip(share, super().losses(step), strict=False):
            yield self.workload.loss(self.forward_model, own)[0] / self.step_tokens


@of(
    "data order",
    wrong_gradient(1, "grad", "temperature", "its microbatches count 6, 0, 0, 0, 0, 0 times"),
)
class AlwaysTheFirst(Named):
    """Each microbatch of a step is the first one."""

    def losses(self, step: int) -> Iterator[Tensor]:
        first = self.of_step(step)[0]
        for _ in super().losses(step):
            yield self.workload.loss(self.forward_model, first)[0] / self.step_tokens


@of("evaluation", disturbs(2, "exp_avg_sq", "reader.weight", "factor", phase="evaluate"), EVALUATED)
class EvalTouchesMoments(Named):
    def evaluate(self) -> None:
        super().evaluate()
        for state in self.optimizer.state.values():
            state["exp_avg_sq"].mul_(0.5)


@of(
    "evaluation",
    wrong_update(4, "master", "reader.weight", "the learning rate is that of the next step"),
    EVALUATED,
)
class EvalSchedules(Named):
    def evaluate(self) -> None:
        super().evaluate()
        self.scheduler.step()


@of("evaluation", wrong_gradient(3, "grad", "temperature"), EVALUATED)
class EvalLeavesGradients(Named):
    """What an evaluation has left in the gradients is added to those of the next step."""

    left: tuple[Tensor, ...] = ()

    def evaluate(self) -> None:
        super().evaluate()
        self.left = tuple(weight.detach().clone() for weight in self.model.parameters())

    def forward_backward(self, step: int) -> None:
        super().forward_backward(step)
        for weight, left in zip(self.model.parameters(), self.left, strict=False):
            if weight.grad is not None:
                weight.grad.add_(left)
        self.left = ()
