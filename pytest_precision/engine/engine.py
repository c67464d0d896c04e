"""Engine: the phases of a training step, and what can be observed after each.

A layout returns an engine; `trace.record` calls its phases in the order of the cell's sequence and
keeps what `observe` yields after each. An engine never sees the other side of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision import modules
from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.engine.observable import Observable, full
from pytest_precision.matrix import sequence
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload

STEP_PHASES = ("forward_backward", "reduce_grads", "clip_grads", "optimizer_step")
"""The phases of one train step, in order."""

EVALUATION_STEP = 0
"""The step number whose microbatches are the evaluation data."""


class Engine(Observable):
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

    Attributes:
        overflow_factor: multiplies the loss, and nothing divides by it: infinity makes an overflow.
        scaler: dynamic loss scaling; None unless the precision is fp16.
        microbatch: number of the one under way among those of all ranks.
    """

    needs_even_shares: ClassVar[bool] = False
    """Whether forward or backward has collectives, as in DDP and FSDP2: a step whose microbatches
    the ranks cannot share evenly is then refused, since ranks with more of them than others would
    wait in a collective that the others never enter."""

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
        scaler = LossScale() if cell.precision == "fp16" else None
        super().__init__(model, optimizer, scaler)
        self.workload = workload
        self.cell = cell
        self.scheduler = workload.scheduler(optimizer) if scheduler is None else scheduler
        self.max_norm = workload.max_norm if max_norm is None else max_norm
        self.forward_model = model if forward_model is None else forward_model
        self.rank = dist.get_rank()
        self.overflow_factor = 1.0
        self.microbatch = 0

    # --- the phases of a step -------------------------------------------------------------------

    def forward_backward(self, step: int) -> None:
        """Accumulate the gradients of this rank's share of the microbatches of `step`."""
        self.optimizer.zero_grad()
        scale = 1.0 if self.scaler is None else self.scaler.scale
        for loss in self._losses_of(step):
            (loss * scale * self.overflow_factor).backward()  # type: ignore[no-untyped-call]
            self.microbatch_done()
        modules.finish_step(self.model, self.reduce_amax)

    def microbatch_done(self) -> None:
        """Called behind the backward of each microbatch."""

    def reduce_amax(self, amaxes: Tensor) -> Tensor:
        """The largest of all ranks, of each amax that delayed scaling has recorded."""
        dist.all_reduce(amaxes, dist.ReduceOp.MAX)
        return amaxes

    def reduce_grads(self) -> None:
        """Sum the gradients over the ranks."""
        for parameter in self.model.parameters():
            gradient = self.gradient(parameter)
            if gradient is not None:
                dist.all_reduce(gradient)

    def clip_grads(self) -> None:
        """Compute the norm of the reduced gradients and scale them down to `max_norm`.

        The norm is summed in fp64 and rounded to fp32 once, so that it has the same bits however
        the gradients are sharded; gradients with a non-finite norm are left alone.
        """
        self.clip([p for _, p in self.masters() if p.grad is not None])

    def clip(self, owners: list[Tensor]) -> None:
        """The same for the gradients of `owners`, all of which have one; unscales them first."""
        gradients = [p.grad for p in owners if p.grad is not None]
        if self.scaler is not None:
            for gradient in gradients:
                gradient.div_(self.scaler.scale)
        self.grad_norm = self.total_norm(gradients).float()
        if self.max_norm is not None and torch.isfinite(self.grad_norm):
            nn.utils.clip_grads_with_norm_(owners, self.max_norm, self.grad_norm)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients of all ranks together, fp64."""
        return full(nn.utils.get_total_norm([gradient.double() for gradient in gradients]))

    def optimizer_step(self) -> None:
        """Update the weights, then the learning rate; nothing if the gradients overflowed."""
        overflowed = not torch.isfinite(self.grad_norm)
        if self.scaler is not None:
            self.scaler.update(overflowed=overflowed)
        if overflowed:
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
        """All training state by fully qualified names, DTensors as such.

        Raises:
            ValueError: for an optimizer whose state is not by parameter, which torch would write
                and then not load.
        """
        self._expect_state_by_parameter()
        model, optimizer = get_state_dict(self.optimized_model, self.optimizer)
        return {"model": model, "optimizer": optimizer, **self.state_beside_weights()}

    def _expect_state_by_parameter(self) -> None:
        trained = [
            (name, parameter) for name, parameter in self.masters() if parameter.requires_grad
        ]
        without = [name for name, parameter in trained if not self.optimizer.state.get(parameter)]
        closure = signature(self.optimizer.step).parameters.get("closure")
        if 0 < len(without) < len(trained):
            problem = (
                f"has state of {len(trained) - len(without)} of {len(trained)}, not of {without[0]}"
            )
        elif closure is not None and closure.default is closure.empty:
            problem = "needs a closure for its step, with which torch makes missing state"
        else:
            return
        raise ValueError(
            "expected an optimizer with state of all parameters or of none, which a checkpoint of "
            f"torch's can hold, but {type(self.optimizer).__name__} {problem}; override "
            "state_dict and load_state_dict of the engine"
        )

    def state_beside_weights(self) -> dict[str, Any]:
        """What `state_dict` holds beside the model and the optimizer."""
        # Generators and buffers are rank-local, so each rank keeps its own under a key of its own;
        # what the model's state has of a buffer is that of one rank.
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
        state: dict[str, Any] = {"rng": {str(self.rank): torch.get_rng_state()}}
        if buffers:
            state["buffers"] = {str(self.rank): buffers}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        if self.scaler is not None:
            state["loss_scale"] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` of an engine of the same layout gave."""
        set_state_dict(
            self.optimized_model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.load_state_beside_weights(state)

    def load_state_beside_weights(self, state: dict[str, Any]) -> None:
        """Take over what `state_beside_weights` gave."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["loss_scale"])
        # A rank that the saving run did not have goes on with the generator of the first one.
        torch.set_rng_state(state["rng"][str(self.rank) if str(self.rank) in state["rng"] else "0"])
        own = state.get("buffers", {}).get(str(self.rank), state["model"])
        for name, buffer in self.named_buffers():
            buffer.copy_(own[name])

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers of the model by logical names; every rank has its own."""
        return self.model.named_buffers()

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
        self._expect_shares(step, len(microbatches))
        share = range(self.rank, len(microbatches), self.cell.world_size)
        for index in share:
            self.microbatch = index
            modules.begin_microbatch(self.model, step, index, first=index == share[0])
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

    def expect_even_shares(self) -> None:
        """Look at every step of the cell's sequence before anything trains.

        Raises:
            ValueError: this engine needs even shares, and ranks cannot share some step evenly.
        """
        if self.needs_even_shares:
            for step in sequence.steps(self.cell.operations):
                self._expect_shares(step, len(self.workload.microbatches(self.cell, step)))

    def _expect_shares(self, step: int, microbatches: int) -> None:
        ranks, workload = self.cell.world_size, type(self.workload).__name__
        if microbatches < ranks:
            raise ValueError(
                f"expected a microbatch for each of {ranks} ranks but got {microbatches} of step "
                f"{step}; make cell.microbatches of them in {workload}.microbatches"
            )
        if self.needs_even_shares and microbatches % ranks:
            raise ValueError(
                f"expected microbatches that ranks share evenly, since {type(self).__name__} has "
                f"collectives in forward or backward, but got {microbatches} % {ranks} = "
                f"{microbatches % ranks} in step {step}; make cell.microbatches of them in "
                f"{workload}.microbatches"
            )
