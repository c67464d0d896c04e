"""Defects of the gradients of experts, of their router, and of a tied weight."""

from __future__ import annotations

import torch
import torch.distributed as dist
from catalogue import (
    contradicts,
    differs,
    wrong_gradient,
)
from torch import Tensor

from both_sides.entries import (
    MOE,
    TWO,
    Named,
    of,
)
from pytest_precision import workloads


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


@of(
    "experts",
    wrong_gradient(1, "grad", "blocks.0.experts.0.up.weight", "it is 2 times what it should be"),
    workload=MOE,
)
class DoubledExperts(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(2 if ".experts." in name else 1)


@of(
    "experts",
    wrong_gradient(1, "grad", "blocks.0.experts.0.up.weight", "it is divided by the ranks, too"),
    TWO,
    workload=MOE,
)
class ExpertsOverRanks(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.div_(self.cell.world_size if ".experts." in name else 1)


@of(
    "experts",
    wrong_gradient(1, "grad", "blocks.0.router.logits.weight", "it is 0 times what it should be"),
    workload=MOE,
)
class NoRouter(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_("router" not in name)


@of(
    "experts",
    wrong_gradient(1, "grad", "blocks.0.router.logits.weight", "it is 0.5 times what it should be"),
    workload=MOE,
)
class HalfRouter(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(0.5 if "router" in name else 1)


@of(
    "experts",
    wrong_gradient(1, "grad", "blocks.0.experts.1.up.weight", "it is 0 times what it should be"),
    workload=MOE,
)
class LostExpert(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(".experts.1." not in name)


@of("experts", wrong_gradient(1, "grad", "blocks.0.experts.0.up.weight"), workload=MOE)
class SwappedExperts(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        if ".experts.0." in name:
            other = self.gradients[name.replace(".experts.0.", ".experts.1.")]
            kept = other.clone()
            other.copy_(gradient)
            gradient.copy_(kept)


@of(
    "experts",
    differs(1, "reduced_grad", "blocks.0.experts.0.up.weight", "replicas", phase="reduce_grads"),
    TWO,
    workload=MOE,
)
class LocalExperts(Named):
    def reduce_grads(self) -> None:
        for name, gradient in self.gradients.items():
            if ".experts." not in name:
                dist.all_reduce(gradient)


@of(
    "experts",
    contradicts(
        1,
        "reduced_grad",
        "blocks.0.experts.0.up.weight",
        "the sum of grad over the ranks",
        factor=0.5,
    ),
    TWO,
    workload=MOE,
)
class MeanExperts(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        for name, gradient in self.gradients.items():
            gradient.div_(self.cell.world_size if ".experts." in name else 1)


@of(
    "experts",
    wrong_gradient(1, "grad", "blocks.0.experts.0.up.weight", "it is -1 times what it should be"),
    workload=MOE,
)
class NegatedExpert(Experts):
    def changed(self, name: str, gradient: Tensor) -> None:
        gradient.mul_(-1 if ".experts.0." in name else 1)


class Tied(Experts):
    """Changes the gradient of the tied weight."""

    def tied(self, gradient: Tensor) -> None:
        raise NotImplementedError

    def changed(self, name: str, gradient: Tensor) -> None:
        if name == "embedding.weight":
            self.tied(gradient)


@of(
    "tied weights",
    wrong_gradient(
        1, "grad", "embedding.weight", "it is 2 times what it should be, as only the tied weight is"
    ),
    workload=workloads.gpt,
)
class TiedTwice(Tied):
    def tied(self, gradient: Tensor) -> None:
        gradient.mul_(2)


@of(
    "tied weights",
    wrong_gradient(
        1,
        "grad",
        "embedding.weight",
        "it is 0.5 times what it should be, as only the tied weight is",
    ),
    workload=workloads.gpt,
)
class TiedHalf(Tied):
    def tied(self, gradient: Tensor) -> None:
        gradient.div_(2)


@of(
    "tied weights",
    contradicts(1, "reduced_grad", "embedding.weight", "the sum of grad over the ranks", factor=2),
    TWO,
    workload=workloads.gpt,
)
class TiedReducedTwice(Named):
    def reduce_grads(self) -> None:
        super().reduce_grads()
        dist.all_reduce(self.gradients["embedding.weight"])


@of("tied weights", wrong_gradient(1, "grad", "embedding.weight"), workload=workloads.gpt)
class TiedGarbage(Tied):
    def tied(self, gradient: Tensor) -> None:
        gradient.add_(self.model.get_parameter("embedding.weight"), alpha=1e-3)
