"""Sixty-two defects that both sides may have, by class; ranks import them.

Each is an engine; a check of one against itself agrees bit for bit, so that only what a side shows
by itself can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.layouts.replicated import MasterEngine
from pytest_precision.workloads.batches import IGNORED
from pytest_precision.workloads.recipe import TrainingRecipe

MOE = partial(workloads.moe, experts=3, depth=1)


class Small(workloads.mlp):
    """A perceptron that is soon trained."""

    def __init__(self) -> None:
        super().__init__(width=16, depth=2)


ONE, TWO = Cell(sequence="train3"), Cell(sequence="train3", world_size=2)
HALF = Cell("fp16", "fp32", sequence="train5")
RESUMED, EVALUATED = Cell(sequence="train2-save-load-train2"), Cell(sequence="train2-eval-train2")
MASTERS = Cell("bf16", "bf16", sequence="train3")


class Entry(NamedTuple):
    """A defect of both sides.

    Attributes:
        family: its class.
        kind: the engine.
        cell: in which it must show.
        workload: of both sides.
        words: what a failure must say, where one rule explains it.
    """

    family: str
    kind: type[Engine]
    cell: Cell
    workload: Callable[..., Workload]
    words: str


ENTRIES: dict[str, Entry] = {}


def of(
    family: str,
    cell: Cell = ONE,
    workload: Callable[..., Workload] = Small,
    words: str = "",
) -> Callable[[type[Engine]], type[Engine]]:
    """Enter an engine as a defect of a class."""

    def enter(kind: type[Engine]) -> type[Engine]:
        ENTRIES[kind.__name__] = Entry(family, kind, cell, workload, words)
        return kind

    return enter


def planted(workload: Workload, cell: Cell, *, name: str) -> Engine:
    """An engine with a defect."""
    kind = ENTRIES[name].kind
    if ENTRIES[name].family == "masters":
        return with_masters(kind, workload, cell)
    model, compute = layouts.resident(workload.model(cell), cell)
    optimizer = torch.optim.AdamW(workload.groups(model))
    forward_model = layouts.compute_in(model, compute)
    return kind(workload, cell, model, optimizer, forward_model=forward_model)


def again(workload: Workload, cell: Cell, *, name: str) -> Engine:
    """The same under another name."""
    return planted(workload, cell, name=name)


class Named(Engine):
    """Has what defects need."""

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients by the names of weights."""
        named = self.model.named_parameters()
        return {name: p.grad for name, p in named if p.grad is not None}

    def of_step(self, step: int) -> list[Any]:
        """All microbatches of a step."""
        return list(self.workload.microbatches(self.cell, step))


class Weighted(Named):
    """Multiplies each loss before its backward, and reports the right one."""

    def weight(self, own: Any, others: list[Any]) -> float:
        raise NotImplementedError

    def losses(self, step: int) -> Iterator[Tensor]:
        others = self.of_step(step)
        rank, size = self.data_parallel
        for own, loss in zip(others[rank::size], super().losses(step), strict=True):
            yield loss * self.weight(own, others)

    def counted(self, microbatches: list[Any]) -> int:
        return max(1, sum(map(self.workload.tokens, microbatches)))


# --- accumulation -------------------------------------------------------------------------------


@of("accumulation", words="a mean of the means")
class MeanOfMeans(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return self.step_tokens / self.counted([own]) / len(others)


@of("accumulation", TWO, words="the rank's own tokens")
class LocalTokens(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        rank, size = self.data_parallel
        return self.step_tokens / self.counted(others[rank::size]) / size


@of("accumulation", words="is left out")
class DropsLast(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return float(self.microbatch < len(others) - 1 or len(others) == 1)


@of("accumulation", words="counts twice")
class RepeatsFirst(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return 1.0 + (self.microbatch == 0)


@of("accumulation", words="not divided by the tokens")
class NeverDivided(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return float(self.step_tokens)


@of("accumulation", words="divided by the microbatches, too")
class DividedTwice(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return 1 / len(others)


@of("accumulation", words="divided by all positions")
class CountsPadding(Weighted):
    def weight(self, own: Any, others: list[Any]) -> float:
        return self.step_tokens / sum(one.targets.numel() for one in others)


@of("accumulation", words="times the gradient of the step before is left in it")
class NeverZeroed(Named):
    def forward_backward(self, step: int) -> None:
        zero_grad, self.optimizer.zero_grad = self.optimizer.zero_grad, lambda: None
        super().forward_backward(step)
        self.optimizer.zero_grad = zero_grad


@of("accumulation", words="left out")
class LastOverwrites(Named):
    def backward(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        super().backward(loss)


@of(
    "accumulation",
    words="microbatch 1 is left out, and microbatch 5 of the evaluation counts instead",
)
class OneOfTheStepBefore(Named):
    """Its second microbatch is the last one of the step before; at step 1, of the evaluation."""

    def losses(self, step: int) -> Iterator[Tensor]:
        before = self.of_step(step - 1)[-1]
        for number, loss in enumerate(super().losses(step)):
            if number == 1:
                total, _ = self.workload.loss(self.forward_model, before)
                yield total / self.step_tokens
            else:
                yield loss


class Masked(Small):
    """Has a mask of its own, and targets in all positions."""

    def microbatches(self, cell: Cell, step: int) -> list[Any]:
        made = super().microbatches(cell, step)
        counted = [one.targets != IGNORED for one in made]
        targets = [one.targets.clamp_min(0) for one in made]
        return [
            {"inputs": one.inputs, "targets": target, "mask": mask.float()}
            for one, target, mask in zip(made, targets, counted, strict=True)
        ]

    def tokens(self, microbatch: Any) -> int:
        return int(microbatch["mask"].sum())

    def loss(self, model: torch.nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        logits = model(microbatch["inputs"]).float().flatten(0, 1)
        each = F.cross_entropy(logits, microbatch["targets"].flatten(), reduction="none")
        return (each * microbatch["mask"].flatten()).sum(), self.tokens(microbatch)


@of("accumulation", workload=Masked, words="a mask leaves out are in the loss")
class IgnoresTheMask(Named):
    def losses(self, step: int) -> Iterator[Tensor]:
        for own, _ in zip(self.of_step(step), super().losses(step), strict=True):
            own["mask"] = torch.ones_like(own["mask"])
            yield self.workload.loss(self.forward_model, own)[0] / self.step_tokens


@of("accumulation", workload=MOE, words="auxiliary loss is a mean of each microbatch alone")
class AuxiliaryAlone(Named):
    """The auxiliary loss is divided by the tokens of its microbatch, and not by those of all."""

    def losses(self, step: int) -> Iterator[Tensor]:
        for own, _ in zip(self.of_step(step), super().losses(step), strict=True):
            together, tokens = self.workload.loss(self.forward_model, own)
            plain, _ = TrainingRecipe.loss(self.workload, self.forward_model, own)
            yield plain / self.step_tokens + (together - plain) / max(1, tokens)


# --- experts ------------------------------------------------------------------------------------


class Experts(Named):
    """Changes the gradients of experts and routers before they are reduced."""

    def changed(self, name: str, gradient: Tensor) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def forward_backward(self, step: int) -> None:
        with torch.enable_grad():
            super().forward_backward(step)
        for name, gradient in self.gradients.items():
            self.changed(name, gradient)


@of("experts", workload=MOE)
class DoubledExperts(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(2 if ".experts." in name else 1)


@of("experts", TWO, MOE)
class ExpertsOverRanks(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.div_(self.cell.world_size if ".experts." in name else 1)


@of("experts", workload=MOE)
class NoRouter(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_("router" not in name)


@of("experts", workload=MOE)
class HalfRouter(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(0.5 if "router" in name else 1)


@of("experts", workload=MOE)
class LostExpert(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(".experts.1." not in name)


@of("experts", workload=MOE)
class SwappedExperts(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        if ".experts.0." in name:
            other = self.gradients[name.replace(".experts.0.", ".experts.1.")]
            kept = other.clone()
            other.copy_(gradient)
            gradient.copy_(kept)


@of("experts", TWO, MOE)
class LocalExperts(Named):
    def reduce_grads(self) -> None:
        for name, gradient in self.gradients.items():
            if ".experts." not in name:
                dist.all_reduce(gradient)


@of("experts", TWO, MOE)
class MeanExperts(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        for name, gradient in self.gradients.items():
            gradient.div_(self.cell.world_size if ".experts." in name else 1)


@of("experts", workload=MOE)
class NegatedExpert(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(-1 if ".experts.0." in name else 1)


# --- reduction ----------------------------------------------------------------------------------


@of("reduction", TWO)
class OneLocal(Named):
    def reduce_grads(self) -> None:
        kept = self.gradients["head.weight"].clone()
        super().reduce_grads()
        self.gradients["head.weight"].copy_(kept)


@of("reduction", TWO)
class Averages(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        for gradient in self.gradients.values():
            gradient.div_(self.cell.world_size)


@of("reduction", TWO)
class ReducesTwice(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        super().reduce_grads()


@of("reduction", TWO)
class Maximum(Named):
    def reduce_grads(self) -> None:
        for gradient in self.gradients.values():
            dist.all_reduce(gradient, dist.ReduceOp.MAX)


@of("reduction", TWO)
class FirstRankAlone(Named):
    def reduce_grads(self) -> None:
        for gradient in self.gradients.values():
            dist.broadcast(gradient, 0)


@of("reduction", TWO)
class TailStaysLocal(Named):
    def reduce_grads(self) -> None:
        tails = {name: g.view(-1)[-3:].clone() for name, g in self.gradients.items()}
        super().reduce_grads()
        for name, gradient in self.gradients.items():
            gradient.view(-1)[-3:] = tails[name]


@of("reduction", TWO)
class SwappedBuckets(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        first, second = self.gradients["blocks.0.scale"], self.gradients["blocks.1.scale"]
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)


@of("reduction", TWO)
class ReducedBeforeTheLast(Named):
    """The reduction starts before the backward of the last microbatch is over."""

    def forward_backward(self, step: int) -> None:
        self.early: list[Tensor] = []
        super().forward_backward(step)

    def microbatch_done(self) -> None:
        self.early = self.early or [g.clone() for g in self.gradients.values()]

    def reduce_grads(self) -> None:
        for gradient, early in zip(self.gradients.values(), self.early, strict=False):
            gradient.copy_(early)
        super().reduce_grads()


# --- checkpoints --------------------------------------------------------------------------------


class Loads(Named):
    """Loads a state that it has changed."""

    def changed(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.changed(state)


@of("checkpoints", RESUMED)
class LoadsNothing(Named):
    def load(self, folder: Path) -> None:
        pass


@of("checkpoints", RESUMED)
class LoadsModelOnly(Named):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])


@of(
    "checkpoints",
    RESUMED,
    words="load after step 2 changed step in the candidate: reader.weight is 0.0 on rank 0, not",
)
class ForgetsSteps(Loads):
    def changed(self, state: dict[str, Any]) -> None:
        for own in self.optimizer.state.values():
            own["step"].zero_()


@of("checkpoints", RESUMED)
class ForgetsMoments(Loads):
    def changed(self, state: dict[str, Any]) -> None:
        for own in self.optimizer.state.values():
            own["exp_avg_sq"].zero_()


@of("checkpoints", RESUMED)
class RoundsWeights(Loads):
    @torch.no_grad()
    def changed(self, state: dict[str, Any]) -> None:
        for weight in self.model.parameters():
            weight.copy_(weight.bfloat16())


@of("checkpoints", RESUMED)
class ForgetsSchedule(Loads):
    def changed(self, state: dict[str, Any]) -> None:
        self.scheduler.last_epoch = 0


class AfterLoad(Named):
    """Trains on other data after a load."""

    loaded = 0

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.loaded = 1


@of("checkpoints", RESUMED)
class DataFromTheStart(AfterLoad):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(step - 2 * self.loaded)


@of("checkpoints", RESUMED)
class SkipsAStep(AfterLoad):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(step + self.loaded)


# --- data order ---------------------------------------------------------------------------------


@of("data order", words="those of the evaluation")
class StepBefore(Named):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(max(step - 1, 0))


@of("data order", words="those of the evaluation")
class EvaluationData(Named):
    def forward_backward(self, step: int) -> None:
        super().forward_backward(0)


@of("data order", TWO)
class SameShare(Named):
    """Every rank trains on the share of the first one."""

    def losses(self, step: int) -> Iterator[Tensor]:
        share = self.of_step(step)[:: self.cell.world_size]
        for own, _ in zip(share, super().losses(step), strict=False):
            yield self.workload.loss(self.forward_model, own)[0] / self.step_tokens


@of("data order")
class AlwaysTheFirst(Named):
    """Each microbatch of a step is the first one."""

    def losses(self, step: int) -> Iterator[Tensor]:
        first = self.of_step(step)[0]
        for _ in super().losses(step):
            yield self.workload.loss(self.forward_model, first)[0] / self.step_tokens


# --- tied weights -------------------------------------------------------------------------------


class Tied(Experts):
    """Changes the gradient of the tied weight."""

    def tied(self, gradient: Tensor) -> None:
        raise NotImplementedError

    def changed(self, name: str, gradient: Tensor) -> None:
        if name == "embedding.weight":
            self.tied(gradient)


@of("tied weights", workload=workloads.gpt, words="2 times what it should be, as only the tied")
class TiedTwice(Tied):
    def tied(self, gradient: Tensor) -> None:
        gradient.mul_(2)


@of("tied weights", workload=workloads.gpt)
class TiedHalf(Tied):
    def tied(self, gradient: Tensor) -> None:
        gradient.div_(2)


@of("tied weights", TWO, workloads.gpt, "not the sum of grad over the ranks .*, 2 times that")
class TiedReducedTwice(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        dist.all_reduce(self.gradients["embedding.weight"])


@of("tied weights", workload=workloads.gpt)
class TiedGarbage(Tied):
    def tied(self, gradient: Tensor) -> None:
        gradient.add_(self.model.get_parameter("embedding.weight"), alpha=1e-3)


# --- clipping -----------------------------------------------------------------------------------


class Clips(Named):
    """Clips in a way of its own, by the right norm."""

    def how(self, gradients: list[Tensor], limit: float) -> None:
        raise NotImplementedError

    def clip_grads(self) -> None:
        limit, self.max_norm = self.max_norm, None
        super().clip_grads()
        self.max_norm = limit
        self.how([*self.gradients.values()], limit)


@of("clipping")
class NoClip(Clips):
    def how(self, gradients: list[Tensor], limit: float) -> None:
        pass


@of("clipping")
class ClipsEach(Clips):
    def how(self, gradients: list[Tensor], limit: float) -> None:
        for gradient in gradients:
            gradient.mul_(min(1.0, limit / float(gradient.norm())))


@of("clipping")
class ClipsToTwice(Clips):
    def how(self, gradients: list[Tensor], limit: float) -> None:
        for gradient in gradients:
            gradient.mul_(2 * limit / self.grad_norm)


@of("clipping")
class NormOfOne(Named):
    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        return super().total_norm(gradients[:1])


# --- learning rates -----------------------------------------------------------------------------


class Rates(Named):
    """Updates with other rates."""

    def rate(self, number: int, group: dict[str, Any]) -> float:
        raise NotImplementedError

    def update_weights(self) -> None:
        groups = self.optimizer.param_groups
        kept = [group["lr"] for group in groups]
        wrong = [self.rate(number, group) for number, group in enumerate(groups)]
        for group, lr in zip(groups, wrong, strict=True):
            group["lr"] = lr
        super().update_weights()
        for group, lr in zip(groups, kept, strict=True):
            group["lr"] = lr


@of("lr")
class OneRate(Rates):
    def rate(self, number: int, group: dict[str, Any]) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


@of("lr")
class FullRate(Rates):
    def rate(self, number: int, group: dict[str, Any]) -> float:
        return float(group["initial_lr"])


@of("lr")
class ThreeTimes(Rates):
    def rate(self, number: int, group: dict[str, Any]) -> float:
        return 3 * float(group["lr"])


@of("lr")
class ScheduledTwice(Named):
    def update_weights(self) -> None:
        super().update_weights()
        self.scheduler.step()


# --- masters ------------------------------------------------------------------------------------


def with_masters(kind: type[MasterEngine], workload: Workload, cell: Cell) -> Engine:
    """An engine of fp32 masters and bf16 weights."""
    master = workload.model(cell)
    model, _ = layouts.resident(deepcopy(master), cell)
    return kind(workload, cell, model, master)


@of("masters", MASTERS)
class RoundsMasters(MasterEngine):
    @torch.no_grad()
    def update_weights(self) -> None:
        super().update_weights()
        for master in self.master_model.parameters():
            master.copy_(master.bfloat16())


@of("masters", MASTERS)
class OneStays(MasterEngine):
    """One weight is not copied from its master."""

    @torch.no_grad()
    def _round_masters(self) -> None:
        kept = next(self.model.parameters()).clone()
        super()._round_masters()
        next(self.model.parameters()).copy_(kept)


@of("masters", MASTERS)
class GradientsInBf16Twice(MasterEngine):
    """Masters get the gradient twice."""

    def clip_grads(self) -> None:
        super().clip_grads()
        for _, master in self._pairs():
            if master.grad is not None:
                master.grad.mul_(2)


# --- scaling ------------------------------------------------------------------------------------


@of("scaling", HALF)
class UnscaledTwice(Named):
    def clip(self, owners: list[Tensor]) -> None:
        for owner in owners:
            owner.grad.div_(self.scaler.scale)
        super().clip(owners)


@of("scaling", HALF)
class NeverGrows(Named):
    def optimizer_step(self) -> None:
        super().optimizer_step()
        self.scaler.scale, self.scaler.good_steps = 2.0**12, 0


@of("scaling", HALF)
class ScaledLate(Named):
    """The loss of the first microbatch is not scaled."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss / (self.scaler.scale if self.microbatch == 0 else 1))


# --- evaluation ---------------------------------------------------------------------------------


@of("evaluation", EVALUATED, words="eval after step 2 changed exp_avg_sq in the candidate")
class EvalTouchesMoments(Named):
    def evaluate(self) -> None:
        super().evaluate()
        for state in self.optimizer.state.values():
            state["exp_avg_sq"].mul_(0.5)


@of("evaluation", EVALUATED)
class EvalSchedules(Named):
    def evaluate(self) -> None:
        super().evaluate()
        self.scheduler.step()


@of("evaluation", EVALUATED)
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


def plain(workload: Workload, cell: Cell, *, again: bool = False) -> Engine:
    """An engine without a defect, and its twin."""
    return layouts.adamw(workload, cell)
