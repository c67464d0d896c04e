"""MegatronEngine: a training loop of Megatron-core's own DDP, optimizer and model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision._torch.training import call_first
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Observation, Span
from pytest_precision.layouts.megatron.stored_model import hidden_by_overlaps
from pytest_precision.layouts.transformer_engine.shown import SHOWN_KINDS, values_of
from pytest_precision.layouts.transformer_engine.te_masters import master_in
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.recipes.megatron import chosen_experts, core_checkpoint, memory, placement
from pytest_precision.recipes.megatron.flat_shards import cut_range, own_shards, pieces_by_name
from pytest_precision.recipes.megatron.started import (
    end_groups_with,
    forget_graphs,
    optimizer_of,
    wrapped,
)
from pytest_precision.workloads.base import Workload


class MegatronEngine(Engine):
    """A training engine of Megatron-core's DDP and optimizer, with `torch_dist` checkpoints.

    A step is what `train_step` of Megatron-LM does: zero the buffers, accumulate under `no_sync`,
    `finalize_model_grads`, and `optimizer.step()`, which also clips and gathers. Reduced gradients
    are shown as they are before that call.

    Args:
        workload: gives the data and the loss, such as `recipes.megatron.Tokens`.
        cell: the point of the matrix.
        model: as Megatron-core builds it, of a `TransformerConfig` with `recipes.megatron.config`.
        ddp: further options of `DistributedDataParallelConfig`.
        optimizer: further options of `OptimizerConfig`; `clip_grad` is 0 unless given, since a norm
            is summed in fp32 over what is stored together.

    Attributes:
        ddp: the model in `DistributedDataParallel` and `Float16Module`.
        updates: what `get_megatron_optimizer` has returned.
    """

    fused_step: ClassVar = True

    def __init__(
        self,
        workload: Workload,
        cell: Cell,
        model: Any,
        *,
        ddp: Mapping[str, Any] | None = None,
        optimizer: Mapping[str, Any] | None = None,
    ) -> None:
        chosen_experts.keep_choices(model)
        self.ddp = wrapped(model, cell, ddp or {})
        end_groups_with(self)
        self.updates = optimizer_of(self.ddp, optimizer or {})
        updated = getattr(self.updates, "chained_optimizers", [self.updates])
        self._parts = pieces_by_name(model)
        self._shards = {}
        self._owners = {}
        for chained_optimizer in updated:
            for shard in own_shards(model, chained_optimizer):
                pieces = [*cut_range(self._parts[shard.name], shard.start, shard.stop)]
                self._shards[shard.name] = (shard.start, shard.stop), pieces
                self._owners[id(shard.tensor)] = shard.name, chained_optimizer.optimizer
        self._taken: set[str] = set()
        super().__init__(
            workload,
            cell,
            model,
            placement.together(
                [chained_optimizer.optimizer for chained_optimizer in updated], workload
            ),
            max_norm=updated[0].config.clip_grad or None,
            forward_model=self.ddp,
            grad_factor=self.ddp.dp_cp_group.size(),  # which DDP averages over
            data_parallel=placement.data_parallel(),
        )
        self.unobservable = hidden_by_overlaps(self.ddp.ddp_config, cell)  # type: ignore[misc]
        self.needs_even_shares = self.overlaps  # type: ignore[misc]

    @property
    def sharded(self) -> bool:
        """Return whether each rank updates only its shard of the weights."""
        return bool(self.ddp.ddp_config.use_distributed_optimizer)

    @property
    def overlaps(self) -> bool:
        """Return whether the all-gathers of parameters overlap with the forward that reads them."""
        return bool(self.ddp.ddp_config.overlap_param_gather)

    # --- the phases of a step -------------------------------------------------------------------

    def forward_backward(self, step: int) -> None:
        """Zero the gradient buffers, and run forward and backward of each microbatch.

        If gathers overlap with the forward, masters are copied into the buffer to be gathered.
        """
        self.ddp.zero_grad_buffer()
        self.updates.zero_grad()
        if self.overlaps:
            self.updates.prepare_model_params_for_param_sync()
        self.ddp.set_is_first_microbatch()
        super().forward_backward(step)
        forget_graphs(self.model)

    def microbatch_context(self, *, last: bool) -> Any:
        """Return DDP's `no_sync()`, or the base class's context for the last microbatch."""
        return super().microbatch_context(last=last) if last else self.ddp.no_sync()

    def microbatch_done(self) -> None:
        """Record that fused gradient accumulation ran, if a GEMM added to the gradient buffer."""
        added = (getattr(p, "grad_added_to_main_grad", False) for p in self.model.parameters())
        if any(added):
            self._taken.add("fused")

    def optimizer_step(self) -> None:
        """Reduce gradients, let Megatron-core clip and update; step the scheduler if it updated."""
        import_module("megatron.core.distributed").finalize_model_grads([self.ddp])
        reduced = [*self._reduced()]
        observations = [
            observation
            for name, gradient in reduced
            for observation in self._pieces("reduced_grad", name, gradient)
        ]
        self.capture.keep("reduced_grad", "shards", observations)
        exact_tensor = self._norm(reduced).float()
        update_successful, norm, _ = self.updates.step()
        if update_successful and self.scheduler is not None:
            self.scheduler.step()
        # Megatron-core computes no norm where it does not clip, nor of a step that it leaves out.
        self.grad_norm = (
            torch.tensor(float(norm)) if update_successful and self.max_norm else exact_tensor
        )

    def _norm(self, gradients: Iterable[tuple[str, Tensor]]) -> Tensor:
        """Return the L2 norm of all ranks' gradients, each counted once, summed in fp64."""
        device = next(self.model.parameters()).device
        squares = torch.zeros((), dtype=torch.float64, device=device)
        for name, gradient in gradients:
            if placement.counts_in_norm(self.model.get_parameter(name), sharded=self.sharded):
                squares += gradient.double().square().sum()
        dist.all_reduce(squares)
        return squares.sqrt()

    def evaluate(self) -> None:
        """Evaluate as Megatron-LM does: gather all parameters first, and turn forward hooks off."""
        if self.overlaps:
            self.updates.prepare_model_params_for_param_sync()
            self.ddp.disable_forward_pre_hook(param_sync=True)
        self.ddp.set_is_first_microbatch()
        super().evaluate()
        if self.overlaps:
            self.ddp.enable_forward_pre_hook()
            for module, handle in self.ddp.remove_forward_pre_hook_handles.items():
                call_first(module, handle)  # before what observes the gathered weights

    def save(self, folder: Path) -> None:
        """All-gather updated weights if that is due, then write a checkpoint to resume from."""
        self.gather()
        core_checkpoint.save(self, folder)

    def load(self, folder: Path) -> None:
        """Load weights, optimizer and random state, which any number of ranks may have saved."""
        core_checkpoint.load(self, folder)

    def save_weights(self, folder: Path) -> None:
        """Save the weights alone; a parameter that stacks experts becomes one weight per expert."""
        self.gather()
        core_checkpoint.save_weights(self, folder)

    def load_weights(self, folder: Path) -> None:
        """Load a checkpoint of weights alone, and reset the master weights to them."""
        core_checkpoint.load_weights(self, folder)

    @torch.no_grad()
    def gather(self) -> None:
        """All-gather the updated parameters now, if the next forward would otherwise do it."""
        if self.overlaps:
            self.updates.prepare_model_params_for_param_sync()
            self.ddp.start_param_sync(force_sync=True)

    # --- what can be observed -------------------------------------------------------------------

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield observations of what a phase of a train step made, such as reduced gradients.

        Reduced gradients are copies from before the update.
        """
        if phase == "reduce_grads":
            yield from capture.kept("reduced_grad")
            return
        yield from super().observe(phase, capture)
        if phase in ("forward_backward", "evaluate"):
            for stored_operand in memory.used(self.model, self._parts):
                yield from self._operand(
                    "used_quantized", stored_operand, stored_operand.operand.part, capture
                )

    def observe_state(self, capture: Capture) -> Iterator[Observation]:
        """Yield observations of all tensors kept between steps, with quantized bytes."""
        yield from super().observe_state(capture)
        weights = self.model.named_parameters()
        for stored_operand in memory.weights_in_memory(self._parts, weights):
            kind = SHOWN_KINDS[stored_operand.operand.field]
            yield from self._operand(kind, stored_operand, stored_operand.operand.side, capture)

    def _operand(
        self, kind: str, stored_operand: memory.HeldOperand, part: str, capture: Capture
    ) -> Iterator[Observation]:
        name = TensorKey(stored_operand.name, part).name(kind)
        return self.show(
            kind, name, stored_operand.tensor, capture, split=False, local=stored_operand.local
        )

    def _reduced(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and flat values of each reduced gradient that this rank's optimizer reads."""
        for name, parameter in self.model.named_parameters():
            gradient = self.gradient(parameter)
            if gradient is not None and name in self._shards:
                (start, stop), _ = self._shards[name]
                yield name, gradient.detach().flatten()[start:stop]

    def _pieces(self, kind: str, name: str, tensor: Tensor) -> Iterator[Observation]:
        """Yield an observation of each of the model's tensors in a parameter or shard."""
        return (self.piece(kind, logical, part) for logical, part in self.logical(name, tensor))

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter name, this rank's part of its master weight)."""
        for group in self.optimizer.param_groups:
            for master in group["params"]:
                yield self._owners[id(master)][0], master

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the fp32 value that the optimizer updates next: the master, or the parameter."""
        return master_in(self._owners[id(parameter)][1], parameter)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return a parameter's part of the gradient buffer; None if the parameter is frozen."""
        return getattr(parameter, "main_grad", None)

    def logical(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Split a parameter, or this rank's shard of it, into the model's named tensors."""
        parts = self._parts.get(name)
        if parts is None:
            return [(name, tensor)]
        (start, stop), shard = self._shards.get(name, ((0, 0), []))
        whole = sum(part[3] - part[2] for part in parts)
        of_shard = tensor.shape == (stop - start,) and tensor.numel() != whole
        return placement.split_pieces(shard if of_shard else parts, tensor)

    def piece(self, kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
        """Return a tensor's observation, with its range in the flattened whole tensor."""
        if isinstance(name, placement.PieceName):
            _, shape, start, stop = name.piece
            return Observation(kind, str(name), tensor, tuple(shape), Span(start, stop), local)
        return super().piece(kind, name, tensor, local=local)

    def show(
        self, kind: str, name: str, tensor: Tensor, capture: Capture, **how: bool
    ) -> Iterator[Observation]:
        """Yield observations of a tensor's values, dequantized if it is quantized."""
        values = values_of(tensor)
        return super().show(kind, name, values, capture, **how)

    def reads(self, prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter that the forward of `module` is about to read.

        Fused experts keep a list of their own, which is read instead.
        """
        yield from memory.read_by(self.model, prefix, module)

    def violations(self) -> Iterator[str]:
        """Yield a sentence for each parameter outside the buffer that all-gathers fill."""
        yield from memory.not_gathered(self.ddp, self.model)

    def paths(self) -> set[str]:
        """Return which of `fused`, `grouped` and `quantized` computation the run has used."""
        return super().paths() | self._taken | memory.paths_of_weights(self.model)
