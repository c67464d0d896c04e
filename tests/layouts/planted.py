"""Layouts with a defect each, in a module of its own so that ranks can import them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pytest_precision import Capture, Cell, Engine, Observation, Workload


def planted(workload: Workload, cell: Cell, *, kind: type[Engine]) -> Engine:
    """Replicated AdamW in fp32 with one engine's defect."""
    model = workload.model(cell)
    return kind(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that have gradients, in the model's order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class NeverSteps(Engine):
    """The control: a candidate whose optimizer does nothing."""

    def update_weights(self) -> None:
        pass


class DoubledGrads(Engine):
    """A divisor that is wrong by the number of ranks."""

    def reduce_grads(self) -> None:
        super().reduce_grads()
        last = list(self.model.parameters())[-1]
        last.grad.mul_(2)


class StepsOnOverflow(Engine):
    """An overflow that still counts as a step."""

    def optimizer_step(self) -> None:
        if not torch.isfinite(self.grad_norm):
            for state in self.optimizer.state.values():
                state["step"] += 1
            return
        super().optimizer_step()


class LooksAtOneTensor(Engine):
    """An overflow that is looked for in one gradient alone, which stands for all."""

    def optimizer_step(self) -> None:
        if torch.isfinite(next(self.model.parameters()).grad).all():
            self.update_weights()
            self.scheduler.step()


class DecaysOnOverflow(Engine):
    """An overflow that moves the learning rate on."""

    def optimizer_step(self) -> None:
        super().optimizer_step()
        if not torch.isfinite(self.grad_norm):
            assert self.scheduler is not None
            self.scheduler.step()


class WritesBackwards(Engine):
    """A checkpoint that has the elements of one weight in reverse, and is read so as well."""

    def save(self, folder: Path) -> None:
        self._reverse()
        super().save(folder)
        self._reverse()

    def load(self, folder: Path) -> None:
        super().load(folder)
        self._reverse()

    @torch.no_grad()
    def _reverse(self) -> None:
        weight = max(self.model.parameters(), key=Tensor.numel)
        weight.copy_(weight.flatten().flip(0).view_as(weight))


def no_engine(workload: Workload, cell: Cell) -> None:
    """A layout whose `return` is missing."""
    planted(workload, cell, kind=Engine)


class Wrapper(torch.nn.Module):
    """Calls the module that it holds, as DistributedDataParallel does."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, features: Tensor) -> Any:
        return self.module(features)


def wrapped(workload: Workload, cell: Cell) -> Engine:
    """A model with a prefix before every name."""
    model = Wrapper(workload.model(cell))
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model.module)))


class LosesNumbersOnLoad(Engine):
    """A checkpoint without one of the numbers of the groups, which then are an optimizer's own."""

    lost: ClassVar[dict[str, Any]] = {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for group in self.optimizer.param_groups:
            group.update(self.lost)


class LosesDecayOnLoad(LosesNumbersOnLoad):
    """Weight decay is that of the constructor again."""

    lost: ClassVar = {"weight_decay": 1e-2}


class LosesBetasOnLoad(LosesNumbersOnLoad):
    """So is the second beta, and nothing but the moments after the next step would show it."""

    lost: ClassVar = {"betas": (0.9, 0.95)}


class LosesEpsOnLoad(LosesNumbersOnLoad):
    """And eps, which hardly ever shows in a weight."""

    lost: ClassVar = {"eps": 1e-7}


class HalvesTheLastRate(Engine):
    """After the last step a rate that no step of the run is made with."""

    def update_weights(self) -> None:
        super().update_weights()
        steps = self.cell.operations.count("train")
        if all(int(state["step"]) == steps for state in self.optimizer.state.values()):
            self.scheduler.lr_lambdas = [lambda _: 0.5] * len(self.optimizer.param_groups)


def one_group_each(workload: Workload, cell: Cell) -> Engine:
    """Replicated AdamW with a group for every parameter."""
    model = workload.model(cell)
    groups = [{**g, "params": [p]} for g in workload.groups(model) for p in g["params"]]
    return Engine(workload, cell, model, torch.optim.AdamW(groups))


class ZeroGrads(Engine):
    """Gradients that are lost before the optimizer sees them, on both sides alike."""

    def reduce_grads(self) -> None:
        for parameter in trained(self.model):
            parameter.grad.zero_()


class RankDrift(Engine):
    """The last rank's weights move a little further than those of the others."""

    def update_weights(self) -> None:
        super().update_weights()
        if self.rank == self.cell.world_size - 1:
            with torch.no_grad():
                next(self.model.parameters()).view(-1)[-1] *= 1 + 2**-20


class Raises(Engine):
    """One rank raises in the middle of a step, while the others wait in a collective."""

    def reduce_grads(self) -> None:
        if self.rank == self.cell.world_size - 1:
            raise RuntimeError("planted on the last rank")
        super().reduce_grads()


class DiffersOnce(Engine):
    """A weight that is off in the first step of all runs, which leaves a file, and never again."""

    mark: Path

    def update_weights(self) -> None:
        super().update_weights()
        if not self.mark.exists():
            with torch.no_grad():
                next(self.model.parameters()).view(-1)[0] += 1
            self.mark.touch()


def differs_once(workload: Workload, cell: Cell, *, mark: str) -> Engine:
    """`DiffersOnce` with its file at `mark`: what a process keeps goes with its ranks."""
    engine = planted(workload, cell, kind=DiffersOnce)
    assert isinstance(engine, DiffersOnce)
    engine.mark = Path(mark)
    return engine


def runs_once(workload: Workload, cell: Cell, *, mark: str) -> Engine:
    """`DiffersOnce`, whose second run does not start."""
    if Path(mark).exists():
        raise RuntimeError("what the first run needed is gone")
    return differs_once(workload, cell, mark=mark)


class WrongAtStep5(Engine):
    """One step of many reduces one gradient twice."""

    steps = 0

    def reduce_grads(self) -> None:
        super().reduce_grads()
        self.steps += 1
        if self.steps == 5:
            max(trained(self.model), key=Tensor.numel).grad.mul_(2)


class LossIsNaN(Engine):
    """A loss that is no number."""

    def report_loss(self, number: int, loss: Tensor) -> None:
        super().report_loss(number, loss * float("nan"))


class CountsInAGlobal(Engine):
    """The position in the data is kept beside the engine, and is in no checkpoint."""

    position: ClassVar[list[int]] = [0]

    def forward_backward(self, step: int) -> None:
        self.position[0] = 1 if step == 1 else self.position[0] + 1
        super().forward_backward(self.position[0])


class OneFileEach(Engine):
    """Every rank reads the file that it has written, so that as many have to read as wrote."""

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / f"rank{self.rank}.pt")

    def load(self, folder: Path) -> None:
        self.load_state_dict(torch.load(folder / f"rank{self.rank}.pt"))


class SharesMoments(Engine):
    """Moments are saved as shares of the ranks, of which another number puts others together."""

    def _scale(self, factor: float) -> None:
        for state in self.optimizer.state.values():
            state["exp_avg"].mul_(factor)

    def save(self, folder: Path) -> None:
        self._scale(1 / self.cell.world_size)
        super().save(folder)
        self._scale(self.cell.world_size)

    def load(self, folder: Path) -> None:
        super().load(folder)
        self._scale(self.cell.world_size)


class Fixed(OneFileEach):
    """One that says so."""

    fixed_world_size = "each rank has a file of its own"


class StaysInEvalMode(Engine):
    """An evaluation after which one module, which has no parameters, does not train."""

    def evaluate(self) -> None:
        super().evaluate()
        last = [module for module in self.model.modules() if not [*module.children()]][-1]
        last.eval()


class AveragesWeights(Engine):
    """The control: an average of the weights, which the checkpoint holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def weight_of_the_past(self) -> float:
        return 0.9

    def update_weights(self) -> None:
        super().update_weights()
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter.detach(), 1 - self.weight_of_the_past())

    def state_beside_weights(self) -> dict[str, Any]:
        # A copy, since a checkpoint is loaded into what this returns.
        average = {name: tensor.clone() for name, tensor in self.average.items()}
        return super().state_beside_weights() | {"average": average}

    def load_state_beside_weights(self, state: dict[str, Any]) -> None:
        super().load_state_beside_weights(state)
        self.average = state["average"]


class AveragesTooFast(AveragesWeights):
    """An average of fewer steps."""

    def weight_of_the_past(self) -> float:
        return 0.8


class LosesTheAverage(AveragesWeights):
    """An average that begins anew after a load."""

    def load_state_beside_weights(self, state: dict[str, Any]) -> None:
        super().load_state_beside_weights(state | {"average": self.average})


class AveragesByItself(AveragesWeights):
    """The control, where the whole checkpoint is the engine's own."""

    def state_beside_weights(self) -> dict[str, Any]:
        return Engine.state_beside_weights(self)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | AveragesWeights.state_beside_weights(self)


class LosesTheAverageByItself(AveragesByItself):
    """An average that begins anew after a load of it."""

    def load_state_beside_weights(self, state: dict[str, Any]) -> None:
        Engine.load_state_beside_weights(self, state)


class GainsABuffer(Engine):
    """A load that makes a buffer that was not saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.model.register_buffer("gained", torch.zeros(3), persistent=False)


class ShowsNoModes(Engine):
    """One that shows its state in a way of its own, as engines for other frameworks do."""

    def observe_state(self, capture: Capture) -> Iterator[Observation]:
        yield from (seen for seen in super().observe_state(capture) if seen.kind != "flag")


def with_a_nudge(workload: Workload, cell: Cell) -> Engine:
    """Replicated AdamW, with a router that prefers its first expert by a little."""
    model = workload.model(cell)
    nudge = torch.tensor([0.01, 0, 0, 0, 0])
    logits = model.get_submodule("blocks.0.router.logits")
    logits.register_forward_hook(lambda module, inputs, output: output + nudge)
    return Engine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))
