"""Engine: the phases of a training step, and what can be observed after each.

A layout returns an engine; `trace.record` calls its phases in the order of the cell's sequence and
keeps what `observe` yields after each. An engine never sees the other side of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision.cell import Cell
from pytest_precision.observation import (
    Observation,
    Span,
    cloned,
    piece,
    tensors_in,
    whole,
)
from pytest_precision.workloads.base import Workload

STEP_PHASES = ("forward_backward", "reduce_grads", "clip_grads", "optimizer_step")
"""The phases of one train step, in order."""

EVALUATION_STEP = 0
"""The step number whose microbatches are the evaluation data."""


class Engine:
    """Plain data-parallel training: every rank holds everything, gradients are summed over ranks.

    The loss of a microbatch is a sum over its tokens; it is divided by the number of tokens of all
    microbatches on all ranks before backward, so that every split of the batch is the same
    mathematics. A subclass overrides only the phases that differ.

    Args:
        workload: the model's data, loss and recipe.
        cell: the point of the matrix.
        model: holds the resident parameters, which are observed as `param`.
        optimizer: any torch optimizer; whatever stands in its `state` is observed.
        scheduler: stepped after the optimizer; the workload's unless given.
        max_norm: of all gradients together, fp32; the workload's unless given.
        forward_model: what the loss is computed with, where it is not `model` itself but a wrapper
            around it.
    """

    unobservable: ClassVar[Mapping[str, str]] = {}
    """Kinds that this engine cannot show, each with the reason; they are not compared."""

    def __init__(
        self,
        workload: Workload,
        cell: Cell,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        max_norm: float | None = None,
        forward_model: nn.Module | None = None,
    ) -> None:
        self.workload = workload
        self.cell = cell
        self.model = model
        self.optimizer = optimizer
        self.scheduler = workload.scheduler(optimizer) if scheduler is None else scheduler
        self.max_norm = workload.max_norm if max_norm is None else max_norm
        self.forward_model = model if forward_model is None else forward_model
        self.rank = dist.get_rank()
        self.loss_scale = 1.0
        self.gathers_shards = False
        self.snapshot: Callable[[Observation], Observation] = cloned
        self.grad_norm = torch.zeros(())
        self._losses: dict[int, Tensor] = {}
        self._microbatches = 0
        self._used: dict[str, list[Observation]] = {}
        for prefix, module in model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_pre_hook(self._remember_used(prefix))

    # --- the phases of a step -------------------------------------------------------------------

    def forward_backward(self, step: int) -> None:
        """Accumulate the gradients of this rank's share of the microbatches of `step`."""
        self.optimizer.zero_grad()
        for loss in self._losses_of(step):
            (loss * self.loss_scale).backward()  # type: ignore[no-untyped-call]

    def reduce_grads(self) -> None:
        """Sum the gradients over the ranks."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)

    def clip_grads(self) -> None:
        """Compute the norm of the reduced gradients and scale them down to `max_norm`.

        The norm is summed in fp64 and rounded to fp32 once, so that it has the same bits however
        the gradients are sharded; gradients with a non-finite norm are left alone.
        """
        self.clip([p for _, p in self.masters() if p.grad is not None])

    def clip(self, owners: list[Tensor]) -> None:
        """The same for the gradients of `owners`, all of which have one."""
        norm = nn.utils.get_total_norm([p.grad.double() for p in owners if p.grad is not None])
        self.grad_norm = _full(norm).float()
        if self.max_norm is not None and torch.isfinite(self.grad_norm):
            nn.utils.clip_grads_with_norm_(owners, self.max_norm, self.grad_norm)

    def optimizer_step(self) -> None:
        """Update the weights, then the learning rate; nothing if the gradients overflowed."""
        if not torch.isfinite(self.grad_norm):
            return
        self.update_weights()
        if self.scheduler is not None:
            self.scheduler.step()

    def update_weights(self) -> None:
        """The part of `optimizer_step` that moves weights."""
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Compute the loss of the evaluation data; training state stays as it is."""
        self.forward_model.eval()
        for _ in self._losses_of(EVALUATION_STEP):
            pass
        self.forward_model.train()

    def save(self, folder: Path) -> None:
        """Write a checkpoint that a fresh engine of any world size can load."""
        save_checkpoint(self.state_dict(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Take over the state of a checkpoint."""
        state = self.state_dict()
        load_checkpoint(state, checkpoint_id=folder)
        self.load_state_dict(state)

    # --- what a checkpoint holds ----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All training state by fully qualified names, DTensors as such."""
        model, optimizer = get_state_dict(self.optimized_model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        # Generators are rank-local, so each rank keeps its own under a key of its own.
        state["rng"] = {str(self.rank): torch.get_rng_state()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` of an engine of the same layout gave."""
        set_state_dict(
            self.optimized_model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"][str(self.rank)])

    @property
    def optimized_model(self) -> nn.Module:
        """The module whose parameters the optimizer updates."""
        return self.model

    # --- how a step is divided ------------------------------------------------------------------

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Entered around forward and backward of each microbatch; `last` ends the accumulation."""
        return nullcontext()

    def _losses_of(self, step: int) -> Iterator[Tensor]:
        """Forward of this rank's microbatches one by one, each loss over the global token count."""
        self._used.clear()
        self._losses.clear()
        microbatches = self.workload.microbatches(self.cell, step)
        self._microbatches = len(microbatches)
        global_tokens = sum(self.workload.tokens(microbatch) for microbatch in microbatches)
        share = range(self.rank, len(microbatches), self.cell.world_size)
        if not share:
            raise ValueError(
                f"expected a microbatch for each of {self.cell.world_size} ranks but got "
                f"{len(microbatches)} of step {step}; make more in {type(self.workload).__name__}"
            )
        for index in share:
            with self.microbatch_context(last=index == share[-1]):
                loss, tokens = self.workload.loss(self.forward_model, microbatches[index])
                expected = self.workload.tokens(microbatches[index])
                if tokens != expected:
                    raise ValueError(
                        f"expected loss() of microbatch {index} of step {step} to count the "
                        f"{expected} tokens that tokens() counts but got {tokens}"
                    )
                loss = loss / global_tokens
                self._losses[index] = loss.detach()
                yield loss

    # --- what can be observed -------------------------------------------------------------------

    def observe(self, phase: str) -> Iterator[Observation]:
        """What `phase` could have changed, as this rank's pieces of logical tensors.

        Args:
            phase: a phase that has just run, or `init`.
        """
        if phase == "forward_backward":
            yield from self._observe_forward()
            if "grad" not in self.unobservable:
                yield from self._observe_grads("grad", self.model.named_parameters(), local=True)
        elif phase == "reduce_grads":
            yield from self._observe_grads("reduced_grad", self.model.named_parameters())
        elif phase == "clip_grads":
            yield whole("grad_norm", "total", self.grad_norm)
            yield from self._observe_lr()
        else:
            if phase == "evaluate":
                yield from self._observe_forward()
            if phase != "optimizer_step":  # there, the scheduler has set the next step's already
                yield from self._observe_lr()
            yield from self.observe_state()

    def observe_state(self) -> Iterator[Observation]:
        """Everything that outlives a step, but for the learning rate."""
        names = self.masters()
        for group in self.optimizer.param_groups:
            for _, (name, _) in zip(group["params"], names, strict=False):
                if "step" in group:  # counted once for all; torch's own counters are fp32
                    yield whole("step", name, torch.tensor(float(group["step"])))
        for name, parameter in self.masters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                for suffix, tensor in tensors_in(value):
                    # A step counter or a scale is no tensor of the parameter's elements.
                    per_element = tensor.shape == parameter.shape
                    yield from self._observe(key, name + suffix, tensor, split=per_element)
            yield from self._observe("master", name, self.effective(parameter))
        for name, parameter in self.model.named_parameters():
            yield from self._observe("param", name, parameter)
        for name, buffer in self.model.named_buffers():
            yield whole("buffer", name, buffer, local=True)
        yield whole("rng", "cpu", torch.get_rng_state(), local=True)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that the optimizer updates, by logical name, in the optimizer's order.

        A tensor that is no parameter of `optimized_model` is named by its place in the optimizer.
        """
        names = {id(p): name for name, p in self.optimized_model.named_parameters()}
        for g, group in enumerate(self.optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                yield names.get(id(parameter), f"param_groups.{g}.params.{p}"), parameter

    def effective(self, parameter: Tensor) -> Tensor:
        """The weight that a parameter of the optimizer stands for, of the parameter's shape.

        An optimizer that keeps a master, a remainder or a compensation of its own for it has a more
        precise one than `parameter` itself; that one is observed as `master`.
        """
        return parameter

    def logical(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Split what this layout stores together into the logical tensors in it."""
        yield name, tensor

    def piece(self, kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
        """Say which part of the logical tensor `name` this rank's `tensor` holds.

        Where shards are gathered, for a digest that does not depend on how a layout shards, that is
        all of it.
        """
        return piece(kind, name, _full(tensor) if self.gathers_shards else tensor, local=local)

    def _observe(
        self, kind: str, name: str, tensor: Tensor, *, split: bool = True, local: bool = False
    ) -> Iterator[Observation]:
        for logical_name, part in self.logical(name, tensor) if split else [(name, tensor)]:
            yield self.piece(kind, logical_name, part.detach(), local=local)

    def _observe_grads(
        self, kind: str, parameters: Iterable[tuple[str, Tensor]], *, local: bool = False
    ) -> Iterator[Observation]:
        for name, parameter in parameters:
            if parameter.grad is not None:
                yield from self._observe(kind, name, parameter.grad, local=local)

    def _observe_forward(self) -> Iterator[Observation]:
        for used in self._used.values():
            yield from used
        # One logical vector with an element a microbatch, so that it can be compared between world
        # sizes: which rank computed an element is no part of the mathematics.
        for index, loss in self._losses.items():
            yield Observation(
                "loss",
                "microbatches",
                loss.reshape(1),
                (self._microbatches,),
                Span(index, index + 1),
            )

    def _observe_lr(self) -> Iterator[Observation]:
        for index, group in enumerate(self.optimizer.param_groups):
            yield whole("lr", f"group{index}", torch.as_tensor(group["lr"], dtype=torch.float64))

    def _remember_used(self, prefix: str) -> Any:
        def hook(module: nn.Module, _inputs: Any) -> None:
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if name not in self._used:
                    seen = self._observe("used_param", name, parameter.detach())
                    self._used[name] = [*map(self.snapshot, seen)]

        return hook


def _full(tensor: Tensor) -> Tensor:
    """A collective where the tensor is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
