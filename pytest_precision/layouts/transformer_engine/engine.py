"""An engine of Transformer Engine's layers and its `FusedAdam`, and the layouts that make it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Observation
from pytest_precision.layouts.declarations import uses_transformer_engine
from pytest_precision.layouts.support import supports
from pytest_precision.layouts.transformer_engine import shown
from pytest_precision.layouts.transformer_engine.layers import (
    InEngineAutocast,
    padded_layers,
    with_experts,
    with_linears,
)
from pytest_precision.matrix.cell import Cell
from pytest_precision.modules.main_grad import accumulate
from pytest_precision.te.groups import members
from pytest_precision.workloads.base import Workload


class TransformerEngine(Engine):
    """Whole weights on every rank, in Transformer Engine's layers.

    With fused accumulation, all gradients are accumulated and reduced in fp32 buffers; without, in
    bf16. A subclass has the optimizer.
    """

    fixed_world_size: ClassVar = "every rank saves a file of its own"

    def __init__(
        self, workload: Workload, cell: Cell, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        forward_model = InEngineAutocast(model, cell.precision)
        super().__init__(workload, cell, model, optimizer, forward_model=forward_model)
        for group in optimizer.param_groups:
            group["step"] = 0  # which Transformer Engine adds in its first step
        self._taken: set[str] = set()
        self._split = dict(_logical_names(model))
        self._trained = [p for p in model.parameters() if p.requires_grad]
        for parameter in self._trained if cell.grad_accum_fusion else []:
            parameter.main_grad = torch.zeros(parameter.shape, device=parameter.device)  # type: ignore[attr-defined]
            parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the tensor that accumulates a gradient: the fp32 buffer, if there is one."""
        found: Tensor | None = getattr(parameter, "main_grad", parameter.grad)
        return found

    def forward_backward(self, step: int) -> None:
        """Clear all gradients, have the weights quantized once, and accumulate."""
        self.zero_gradients()
        self.begin()
        super().forward_backward(step)

    def zero_gradients(self) -> None:
        """Clear what the last step accumulated."""
        for parameter in self._trained:
            parameter.grad = None
            if self.cell.grad_accum_fusion:
                parameter.main_grad.zero_()  # type: ignore[attr-defined]

    def microbatch_done(self) -> None:
        """Add the gradients that no GEMM has added to their buffers."""
        for parameter in self._trained if self.cell.grad_accum_fusion else []:
            if getattr(parameter, "grad_added_to_main_grad", False):
                self._taken.add("fused")
            accumulate(parameter)

    def evaluate(self) -> None:
        """Evaluate with the weights as they are now, and leave nothing cached."""
        self.begin()
        super().evaluate()

    def logical(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Split a single grouped weight or bias into those of the experts."""
        parts = self._split.get(name, (name,))
        return zip(parts, tensor.unbind(), strict=True) if len(parts) > 1 else [(parts[0], tensor)]

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
        """Yield the values of a tensor of Transformer Engine; its bytes are kinds of their own."""
        values = values_of(tensor)
        return super().show(kind, name, values, capture, split=split, local=local)

    def observe_state(self, capture: Capture) -> Iterator[Observation]:
        """Yield everything that outlives a step, with the bytes and scales of the weights."""
        yield from super().observe_state(capture)
        for kind, name, tensor in shown.quantized_state(self.model):
            local = kind == "recorded_amax"
            yield from self.show(kind, name, tensor, capture, split=False, local=local)

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield what every engine yields, and after a forward the weights that it multiplied by."""
        yield from super().observe(phase, capture)
        if phase in ("forward_backward", "evaluate"):
            for name, tensor in shown.used_quantized(self.model):
                yield from self.show("used_quantized", name, tensor, capture, split=False)

    def paths(self) -> set[str]:
        """Return which paths the forwards and backwards took so far."""
        layers = [*padded_layers(self.model)]
        stored = {
            "grouped": any(map(shown.is_grouped, layers)),
            "quantized": any(shown.is_quantized(layer) for layer in layers),
        }
        return super().paths() | self._taken | {path for path, there in stored.items() if there}

    def save(self, folder: Path) -> None:
        """Write this rank's state by `torch.save`, as scripts with Transformer Engine do."""
        folder.mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / f"rank{self.rank}.pt")

    def load(self, folder: Path) -> None:
        """Load this rank's state, which holds pickled numbers of delayed scaling."""
        os.environ["NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"] = "1"
        self.load_state_dict(torch.load(folder / f"rank{self.rank}.pt", weights_only=False))

    def state_dict(self) -> dict[str, Any]:
        """Return all training state by the names that model and optimizer give it."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return state | self.state_beside_weights()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` of an engine of the same layout returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.load_state_beside_weights(state)

    def begin(self) -> None:
        """Have the next forward quantize the weights anew, since they may have changed."""
        for layer in padded_layers(self.model):
            layer.first = True


def values_of(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, quantized or not; of a group, one matrix per member."""
    if hasattr(tensor, "split_into_quantized_tensors"):
        return torch.stack([values_of(part) for part in members(tensor)])
    return tensor.dequantize() if hasattr(tensor, "_quantizer") else tensor


def _logical_names(model: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each parameter of a layer, and the logical names of what is in it."""
    modules = {id(module): name for name, module in model.named_modules()}
    for padded in padded_layers(model):
        prefix, single = f"{modules[id(padded)]}.layer", len(padded.logical) == 1
        for kind in ("weight", "bias"):
            names = tuple(f"{name}.{kind}" for name in padded.logical)
            yield f"{prefix}.{kind}", names
            if not single:
                for number, name in enumerate(names):
                    yield f"{prefix}.{kind}{number}", (name,)


def initial_of(parameter: Any) -> Tensor:
    """Return a parameter in fp32 as it was before it was quantized, which Megatron's masters are.

    It is kept on the CPU since the parameter was made; `FusedAdam` does not ask for it.
    """
    if hasattr(parameter, "get_high_precision_init_val"):
        kept: Tensor = parameter.get_high_precision_init_val()
        parameter.clear_high_precision_init_val()
        return kept.to(parameter.device).float().reshape(parameter.shape)
    if not hasattr(parameter, "split_into_quantized_tensors"):
        return values_of(parameter).detach().float().clone()
    return torch.stack([initial_of(part) for part in members(parameter)])


class OptimizerMasters(TransformerEngine):
    """`FusedAdam` has the masters: it updates them, and rounds or quantizes them to the weights."""

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module) -> None:
        optimizers = import_module("transformer_engine.pytorch.optimizers")
        groups = workload.groups(model)
        optimizer = optimizers.FusedAdam(groups, master_weights=True, use_decoupled_grad=True)
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if hasattr(parameter, "get_high_precision_init_val"):
                optimizer.initialize_state(parameter, False)
                optimizer.set_scaled_state(parameter, "master_param", initial_of(parameter))
        super().__init__(workload, cell, model, optimizer)

    def clip_grads(self) -> None:
        """Upcast the reduced gradients to what the optimizer reads, then clip that."""
        owners = []
        for parameter in self._trained:
            gradient = self.gradient(parameter)
            read = None if gradient is None else gradient.float()
            parameter.decoupled_grad = read  # type: ignore[attr-defined]
            if read is not None:
                owners.append(torch.empty(read.shape, device=read.device))
                owners[-1].grad = read
        self.clip(owners)

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the master that the next update starts from."""
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        return state.get("master_param", values_of(parameter).float())


class OutsideMasters(TransformerEngine):
    """`FusedAdam` updates fp32 masters beside the model, which are then stored as the weights.

    This is how Megatron does it, and the only way for a single grouped weight, which has no memory
    of its own that a kernel could update.

    Attributes:
        pairs: each trained parameter with its master.
    """

    def __init__(self, workload: Workload, cell: Cell, model: nn.Module) -> None:
        optimizers = import_module("transformer_engine.pytorch.optimizers")
        groups = workload.groups(model)
        self.pairs: list[tuple[Any, nn.Parameter]] = [
            (parameter, nn.Parameter(initial_of(parameter)))
            for group in groups
            for parameter in group["params"]
        ]
        made = iter([master for _, master in self.pairs])
        held = [{**group, "params": [next(made) for _ in group["params"]]} for group in groups]
        self._names = {id(p): name for name, p in model.named_parameters()}
        super().__init__(workload, cell, model, optimizers.FusedAdam(held))

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the masters by the names of the weights that are stored from them."""
        return ((self._names[id(parameter)], master) for parameter, master in self.pairs)

    def clip_grads(self) -> None:
        """Upcast the reduced gradients to those of the masters, then clip these."""
        for parameter, master in self.pairs:
            gradient = self.gradient(parameter)
            master.grad = None if gradient is None else values_of(gradient).float()
        super().clip_grads()

    @torch.no_grad()
    def update_weights(self) -> None:
        """Update the masters, and round or quantize them to the weights."""
        super().update_weights()
        for parameter, master in self.pairs:
            store(parameter, master)

    def state_dict(self) -> dict[str, Any]:
        """Return the masters too, which are more than the weights."""
        return super().state_dict() | {"master": [master.data for _, master in self.pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load masters, and store them in the weights once more.

        A single grouped weight is loaded by way of its rowwise values, of which MXFP8 makes another
        columnwise operand than the one that was saved.
        """
        super().load_state_dict(state)
        with torch.no_grad():
            for (parameter, master), saved in zip(self.pairs, state["master"], strict=True):
                master.copy_(saved)
                store(parameter, master)


def store(parameter: Any, master: Tensor) -> None:
    """Round or quantize a master into a parameter, member by member."""
    if not hasattr(parameter, "split_into_quantized_tensors"):
        parts: list[tuple[Any, Tensor]] = [(parameter, master)]
    else:
        parts = list(zip(members(parameter), master.unbind(), strict=True))
    for part, exact in parts:
        if hasattr(part, "quantize_"):
            part.quantize_(exact.to(part.dtype))
        else:
            part.copy_(exact)


_SUPPORTED = supports(
    {"bf16": ["bf16"], "quantized": ["bf16", "quantized"]}, fused=["bf16", "quantized"]
)


@uses_transformer_engine
@_SUPPORTED
def te_linears(workload: Workload, cell: Cell, *, masters_in_optimizer: bool = True) -> Engine:
    """Set up a model whose blocks have Transformer Engine's `Linear`.

    Args:
        workload: what is trained; the sizes in its blocks are multiples of 32.
        cell: the point of the matrix.
        masters_in_optimizer: whether `FusedAdam` has the masters, or they stand beside the model.
    """
    model = in_bf16(with_linears(workload.model(cell), cell))
    return (OptimizerMasters if masters_in_optimizer else OutsideMasters)(workload, cell, model)


@uses_transformer_engine
@_SUPPORTED
def te_experts(
    workload: Workload,
    cell: Cell,
    *,
    single_grouped_weight: bool = False,
    masters_in_optimizer: bool = False,
) -> Engine:
    """Set up a mixture whose experts are Transformer Engine's `GroupedLinear`.

    Args:
        workload: what is trained, such as `workloads.moe`.
        cell: the point of the matrix.
        single_grouped_weight: one parameter for all weights of a layer, rather than one per expert.
        masters_in_optimizer: whether `FusedAdam` has the masters, which it cannot have of a single
            grouped weight, or they stand beside the model.
    """
    made = with_experts(workload.model(cell), cell, single_grouped_weight=single_grouped_weight)
    engine = OptimizerMasters if masters_in_optimizer else OutsideMasters
    return engine(workload, cell, in_bf16(made))


def in_bf16(model: nn.Module) -> nn.Module:
    """Round all parameters that are still in fp32, in place."""
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter and parameter.dtype is torch.float32:
            parameter.data = parameter.data.to(torch.bfloat16)
    return model
