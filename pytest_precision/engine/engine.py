"""A training loop divided into the phases of a step, which a recorder calls in order.

A layout returns an engine; `EngineRun` calls its phases in the order of the cell's sequence, and
`EngineTrace` keeps what `observe` yields after each. An engine never sees the other side of the
comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.clipping import Clip, clip_by, expect_rule, scale_down, total_norm
from pytest_precision.engine.dealing import Dealing, data_parallel_of, expect_sum
from pytest_precision.engine.decisions import decisions, of_step
from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.engine.observation import Observation
from pytest_precision.engine.quantizing import finish_step
from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload

STEP_PHASES = ("forward_backward", "reduce_grads", "clip_grads", "optimizer_step")
"""The phases of one train step, in order."""

EVALUATION_STEP = 0
"""The step number whose microbatches are the evaluation data."""


class Engine(Dealing):
    """Plain data-parallel training: each rank has whole tensors; gradients are summed over ranks.

    A subclass overrides only what differs. Every rank calls, in this order:

    1. `start(capture)`, once: hooks are registered here, so that a subclass can set attributes
       after `super().__init__()`.
    2. `forward_backward(step)` accumulates gradients. It takes each loss of this rank from
       `losses(step)`, multiplies it by `loss_factor`, and gives it to `backward(loss)`; then comes
       `microbatch_done()`. `losses` takes its share from `my_microbatches(step)` and hands each
       loss to `report_loss(number, loss)`.
    3. `reduce_grads()` sums the gradients over the data-parallel ranks.
    4. `clip_grads()` sets `grad_norm` to the norm before clipping, and clips.
    5. `optimizer_step()` calls `update_weights()` and the scheduler, unless `grad_norm` is not
       finite: a step that overflowed must leave everything as it was.

    `evaluate()`, `save(folder)` and `load(folder)` are called where the sequence says; `load` is
    called on a fresh engine, and must restore all that the next step reads: weights, masters,
    optimizer state and its parameter groups, the scheduler, the loss scale, buffers, and the
    random number generator of each rank. After each phase `observe(phase, capture)` yields what
    the phase may have changed; `grad_norm` and `lr` come after `clip_grads`, before the update.

    This order is fixed. A training loop in another order, such as one that clips after the update,
    can be tested only if it does all of this in one call: see the third pattern.

    An optimizer of your own; everything in its `state` is observed:

        class WithMasters(Engine):
            def update_weights(self):
                self.optimizer.step(scale=1.0)

            def effective(self, parameter):  # the weight that the next update starts from
                return self.optimizer.state[parameter].get("master", parameter)

    A wrapper that reduces by itself:

        class Ddp(Engine):
            unobservable = {"grad": "DDP reduces gradients inside backward"}
            needs_even_shares = True

            def __init__(self, workload, cell, model, optimizer):
                wrapper = DistributedDataParallel(model)
                super().__init__(
                    workload, cell, model, optimizer, forward_model=wrapper,
                    grad_factor=cell.world_size,  # DDP averages, the loss is over all tokens
                )

            def microbatch_context(self, *, last):
                return nullcontext() if last else self.forward_model.no_sync()

            def reduce_grads(self):
                pass

    A framework's engine that reduces, clips and updates in one call:

        class Zero(Engine):
            unobservable = {"grad": "reduced in backward", "reduced_grad": "kept in partitions"}
            fused_step = True  # reduce_grads and clip_grads are not called

            def backward(self, loss):
                self.framework.backward(loss)

            def optimizer_step(self):
                self.framework.step()
                self.grad_norm = torch.tensor(self.framework.get_global_grad_norm())

    The loss of a microbatch is a sum over its tokens; it is divided by the number of tokens of all
    microbatches on all ranks, so that every split of the batch computes the same function. A loop
    of your own does what `losses` and `forward_backward` do:

        def forward_backward(self, step):
            self.optimizer.zero_grad()
            for number, microbatch in self.my_microbatches(step):
                total, tokens = self.workload.loss(self.forward_model, microbatch)
                loss = total / self.step_tokens
                self.report_loss(number, loss)
                (loss * self.loss_factor).backward()

    Args:
        workload: the model's data, loss and recipe.
        cell: the point of the matrix.
        model: holds the resident parameters, which are observed as `param`.
        optimizer: any torch optimizer; everything in its `state` is observed.
        scheduler: stepped after the optimizer; the workload's unless given.
        max_norm: limit on the norm of all gradients together; the workload's unless given.
        forward_model: the wrapper around `model` that computes the loss; `model` itself unless
            given.
        clip: rule by which gradients are clipped; the workload's unless given.
        grad_factor: factor on the loss that undoes a framework's own division of gradients: the
            number of ranks where it averages over them. Local gradients are divided by it before
            they are shown.
        data_parallel: rank and size of the data-parallel dimension, where other ranks hold other
            parts of the model; all ranks unless given.

    Attributes:
        scaler: dynamic loss scaling; None unless the precision is fp16.
        rank: rank of this process among all ranks.
        microbatch: number of the current microbatch among those of all ranks.
        step_tokens: number of tokens of all microbatches of the step on all ranks.
    """

    fused_step: ClassVar[bool] = False
    """Whether `optimizer_step` reduces, clips and updates. If so, `reduce_grads` and `clip_grads`
    are not called; what they would show is shown after it, with the learning rates before it."""

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
        clip: str | Clip | None = None,
        grad_factor: float = 1.0,
        data_parallel: tuple[int, int] | None = None,
    ) -> None:
        scaler = LossScale() if cell.precision == "fp16" else None
        super().__init__(model, optimizer, scaler)
        self.workload = workload
        self.cell = cell
        self.scheduler = workload.scheduler(optimizer) if scheduler is None else scheduler
        self.max_norm = workload.max_norm if max_norm is None else max_norm
        self.forward_model = model if forward_model is None else forward_model
        self.clip_rule = workload.clip if clip is None else clip
        expect_rule(self.clip_rule)
        self.grad_factor = grad_factor
        self.rank = dist.get_rank()
        self.data_parallel = data_parallel_of(data_parallel, cell.world_size)

    # --- the phases of a step -------------------------------------------------------------------

    def forward_backward(self, step: int) -> None:
        """Run forward and backward of this rank's microbatches; gradients accumulate."""
        self.optimizer.zero_grad()
        for loss in self.losses(step):
            self.backward(loss * self.loss_factor)
            self.microbatch_done()
        finish_step(self.model, self.reduce_amax)

    def losses(self, step: int) -> Iterator[Tensor]:
        """Yield the loss of each of this rank's microbatches, divided by the whole step's tokens.

        Raises:
            TypeError: `loss` returns no sum with its number of tokens.
            ValueError: `loss` counts other tokens than `tokens`.
        """
        for number, microbatch in self.my_microbatches(step):
            loss_pair = self.workload.loss(self.forward_model, microbatch)
            expect_sum(type(self.workload).__name__, loss_pair)
            loss, tokens = loss_pair
            expected = self.workload.tokens(microbatch)
            if tokens != expected:
                raise ValueError(
                    expected_but_got(
                        f"loss() of microbatch {number} of step {step} to count the {expected} "
                        "tokens that tokens() counts",
                        tokens,
                        "let both count the tokens that the loss sums over",
                    )
                )
            loss = loss / self.step_tokens
            self.report_loss(number, loss)
            yield loss

    def backward(self, loss: Tensor) -> None:
        """Run the backward of a microbatch's loss, which is already divided and scaled."""
        loss.backward()  # type: ignore[no-untyped-call]

    def microbatch_done(self) -> None:
        """Do nothing; a subclass may override this to act after the backward of each microbatch."""

    def reduce_amax(self, amaxes: Tensor) -> Tensor:
        """Return the maximum over all ranks of each fp32 amax in `amaxes`, by a collective."""
        dist.all_reduce(amaxes, dist.ReduceOp.MAX)
        return amaxes

    def reduce_grads(self) -> None:
        """Sum the gradients over all data-parallel ranks, by an all-reduce of each.

        Raises:
            ValueError: the data-parallel dimension is neither one rank nor all ranks.
        """
        _, size = self.data_parallel
        if size not in (1, self.cell.world_size):
            raise ValueError(
                expected_but_got(
                    f"data parallelism over all {self.cell.world_size} ranks or one",
                    f"data_parallel={self.data_parallel!r}",
                    f"override reduce_grads of {type(self).__name__}, which knows the process "
                    "group",
                )
            )
        gradients = map(self.gradient, self.model.parameters())
        if size == self.cell.world_size:  # which one rank by itself is too
            for gradient in gradients:
                if gradient is not None:
                    dist.all_reduce(gradient)

    def clip_grads(self) -> None:
        """Compute the norm of the reduced gradients and scale them down to `max_norm`.

        Under the rule `"fp64"` the norm is summed in fp64 and rounded to fp32 once, so that it has
        the same bits however the gradients are sharded; gradients with a non-finite norm are not
        scaled. A workload's `clip` may name another rule.
        """
        self.clip([p for _, p in self.masters() if p.grad is not None])

    def clip(self, owners: list[Tensor]) -> None:
        """Undo the loss scale in the parameters' gradients, then clip their norm to `max_norm`."""
        gradients = [p.grad for p in owners if p.grad is not None]
        if self.scaler is not None:
            for gradient in gradients:
                gradient.div_(self.scaler.scale)
        if self.clip_rule != "fp64":
            self.grad_norm = clip_by(self.clip_rule, owners, self.max_norm)
            return
        self.grad_norm = self.total_norm(gradients).float()
        if self.max_norm is not None and torch.isfinite(self.grad_norm):
            scale_down(owners, self.max_norm, self.grad_norm)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the L2 norm of all gradients as one vector, over all ranks' shards, in fp64."""
        return total_norm(gradients)

    def optimizer_step(self) -> None:
        """Update the weights, then the learning rate; skip both if the gradients overflowed."""
        overflowed = not torch.isfinite(self.grad_norm)
        if self.scaler is not None:
            self.scaler.update(overflowed=overflowed)
        if overflowed:
            return
        self.update_weights()
        if self.scheduler is not None:
            self.scheduler.step()

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield this rank's observations of the tensors that `phase` of a step computes or changes.

        Before an update, these include whether the engine clips the gradients and whether it skips
        the update.
        """
        if phase == "optimizer_step" and "grad_norm" not in self.unobservable:
            yield from decisions(of_step(self.grad_norm, self.max_norm))
        yield from super().observe(phase, capture)

    def update_weights(self) -> None:
        """Run the optimizer's step, without the learning rate scheduler's."""
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Compute the loss of the evaluation data without changing the training state."""
        self.forward_model.eval()
        for _ in self.losses(EVALUATION_STEP):
            pass
        self.forward_model.train()
