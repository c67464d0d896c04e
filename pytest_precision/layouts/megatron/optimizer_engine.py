"""Megatron-LM's distributed optimizer: contiguous buffers, sharded masters, gathered parameters.

Sources: Megatron-LM's `param_and_grad_buffer.py` and `distrib_optimizer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.main_grad import accumulate
from pytest_precision.engine.observation import Observation
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.megatron import checkpoint
from pytest_precision.layouts.megatron.buffers import Bucket, Buffer, BufferSlot, buffers_of
from pytest_precision.layouts.megatron.gathered import GatheredEngine, outside_buffers
from pytest_precision.layouts.megatron.shards import LogicalNames, adam_on_masters, shards_of
from pytest_precision.layouts.megatron.stored_model import (
    Arrange,
    Arrangement,
    Options,
    hidden_by_overlaps,
)
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules.grouped import GroupedLinear
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.workloads.base import Workload


class DistributedOptimizer(GatheredEngine):
    """Training in which each rank updates an equal part of every bucket of parameters.

    Gradients are accumulated in `main_grad`, a part of the gradient buffer, and summed over the
    ranks by a reduce-scatter. Masters are cast to the dtype of the parameters, and gathered.

    Args:
        workload: what is trained.
        cell: the point of the matrix.
        arrangement: the model as it is stored.
        options: as `distributed_optimizer` takes them.
    """

    def __init__(
        self, workload: Workload, cell: Cell, arrangement: Arrangement, options: Options
    ) -> None:
        self.options = options
        self.parts = arrangement.parts
        self.buffers = [*buffers_of(cell, arrangement, options)]
        for buffer in self.buffers:
            for slot in buffer.slots:
                self.move_into(buffer, slot)
        self.shards = shards_of(self.buffers, arrangement, options)
        self.names = LogicalNames(arrangement.parts, arrangement.names, self.shards)
        self._lost_starts = [
            f"master {name} was initialised from dequantized weights"
            for name in arrangement.from_dequantized
        ]
        self.members = [group["params"] for group in arrangement.groups]
        self._last_microbatch = False
        optimizer = adam_on_masters(self.shards, arrangement, options)
        super().__init__(workload, cell, arrangement.model, optimizer)
        self.unobservable = hidden_by_overlaps(options, cell)  # type: ignore[misc]
        self.needs_even_shares = options.overlap_grad_reduce or options.overlap_param_gather  # type: ignore[misc]
        for buffer in self.buffers:
            for bucket in buffer.buckets:
                for slot in bucket.slots:
                    slot.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        partial(self._accumulate, buffer, bucket)
                    )
        if options.overlap_param_gather:
            self.gather_before_forward()

    @classmethod
    def of(
        cls,
        workload: Workload,
        cell: Cell,
        arrange: Arrange | None = None,
        **options: Any,
    ) -> DistributedOptimizer:
        """Set up a workload's model with the distributed optimizer, with options by keyword.

        Args:
            workload: what is trained.
            cell: the point of the matrix.
            arrange: puts modules of the layout into the model.
            **options: as `distributed_optimizer` takes them.
        """
        arrangement = Arrangement.of(workload, cell, arrange)
        return cls(workload, cell, arrangement, Options.of(cell, **options))

    def move_into(self, buffer: Buffer, slot: BufferSlot) -> None:
        """Move a parameter and its gradient into a buffer."""
        if not isinstance(slot.parameter, QuantizedParameter):
            view = buffer.view(slot, buffer.params)
            view.copy_(slot.parameter.detach())
            slot.parameter.data = view
        else:
            for key, place in buffer.resident(slot).items():
                slot.parameter.rebase_(key, place)
        slot.parameter.main_grad = buffer.view(slot, buffer.grads)  # type: ignore[attr-defined]

    # --- gradients ------------------------------------------------------------------------------

    def forward_backward(self, step: int) -> None:
        """Zero the gradient buffers, and accumulate all microbatches' gradients in them."""
        for buffer in self.buffers:
            buffer.zero_grads()
            for bucket in buffer.buckets:
                bucket.waiting = [*bucket.slots]
        if self.options.overlap_param_gather:
            self.stage(shared=True)  # what was staged there before is zero now
        super().forward_backward(step)

    def microbatch_context(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return an empty context; the `last` microbatch's backward may then reduce gradients."""
        self._last_microbatch = last
        return nullcontext()

    def _accumulate(self, buffer: Buffer, bucket: Bucket, parameter: Tensor) -> None:
        accumulate(parameter)
        if self.options.overlap_grad_reduce and self._last_microbatch:
            bucket.waiting = [s for s in bucket.waiting if s.parameter is not parameter]
            if not bucket.waiting:
                buffer.reduce(bucket)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the parameter's part of the gradient buffer; None if it is frozen."""
        return getattr(parameter, "main_grad", None)

    def microbatch_done(self) -> None:
        """Record each gradient sum whose dtype differs from its parameter's, after a microbatch."""
        for name, parameter in self.model.named_parameters():
            gradient = self.gradient(parameter)
            if gradient is None or gradient.dtype == parameter.dtype:
                continue
            for logical, part in self.logical(name, gradient):
                self._keep_of_microbatch("grad", logical, part)

    def reduce_grads(self) -> None:
        """Sum gradients over the ranks; each rank receives the sums of one part of every bucket.

        Raises:
            RuntimeError: a bucket was to be reduced in backward, and some gradient never came.
        """
        for buffer in self.buffers:
            for bucket in buffer.buckets:
                if not self.options.overlap_grad_reduce:
                    buffer.reduce(bucket)
                elif bucket.waiting:
                    names = ", ".join(slot.name for slot in bucket.waiting)
                    raise RuntimeError(
                        expected_but_got(
                            f"gradients of {names} in the last microbatch",
                            "none, so that their bucket was not reduced in backward",
                            "use every parameter in it, or leave overlap_grad_reduce out",
                        )
                    )
                buffer.wait(bucket)
        self.hand_over_gradients()

    # --- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all ranks' training state as whole tensors, for any world size and layout."""
        return checkpoint.state_dict(self)

    def load(self, folder: Path) -> None:
        """Load a checkpoint of whole tensors, without casts."""
        checkpoint.load_state(self, folder)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's buffers by their names in the original model."""
        for name, buffer in self.model.named_buffers():
            yield self.names.of(name), buffer

    def violations(self) -> Iterator[str]:
        """Yield a sentence for each wrongly initialised master, or tensor outside its buffer."""
        yield from self._lost_starts
        yield from outside_buffers(self)

    # --- what can be observed -------------------------------------------------------------------

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield the tensors to compare after a training phase; reduced gradients as shards."""
        if phase == "reduce_grads":
            for shard in self.shards:
                yield from self.show("reduced_grad", shard.name, shard.grad, capture)
        else:
            yield from super().observe(phase, capture)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter name, this rank's part of its master weight)."""
        names = {id(shard.master): shard.name for shard in self.shards}
        for group in self.optimizer.param_groups:
            for master in group["params"]:
                yield names[id(master)], master

    def logical(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Split a packed parameter, or this rank's shard, into the original model's tensors."""
        return self.names.split(name, tensor)

    def show(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        capture: Capture,
        *,
        split: bool = True,
        local: bool = False,
    ) -> Iterator[Observation]:
        """Yield observations of a tensor to record; of a shard, one per original tensor in it."""
        if split or not self.names.is_sharded(name):
            yield from super().show(kind, name, tensor, capture, split=split, local=local)
            return
        # Steps are counted everywhere; a scale is that of this rank's shard.
        of_shard = kind != "step" and self.cell.world_size > 1
        for logical in self.names.held(name):
            yield self.piece(kind, logical, tensor.detach(), local=of_shard)

    def reads(self, prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of what a module's GEMMs are about to read: weights and biases."""
        if isinstance(module, GroupedLinear):
            for name, read in {**module.read("weight"), **module.read("bias")}.items():
                yield f"{prefix}.{name}", read
        else:
            yield from super().reads(prefix, module)

    def piece(self, kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
        """Return an observation of a tensor to record; a shard's has its range in the whole one."""
        place = self.names.place(name, tensor)
        if place is None:
            return super().piece(kind, name, tensor, local=local)
        return Observation(kind, name, tensor, *place, local)
