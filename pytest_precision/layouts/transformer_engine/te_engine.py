"""The engine that trains Transformer Engine's layers, and records and saves their state."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.main_grad import accumulate
from pytest_precision.engine.observation import Observation
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.transformer_engine import shown
from pytest_precision.layouts.transformer_engine.layers import (
    EngineLayer,
    InEngineAutocast,
    Padded,
    padded_modules,
)
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload

MOMENTS = ("exp_avg", "exp_avg_sq")


class TransformerEngine(Engine):
    """Training with Transformer Engine's layers, with whole weights on every rank.

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
        self._padded = [*padded_modules(model)]
        self._split = dict(_logical_names(model))
        self._trained = [p for p in model.parameters() if p.requires_grad]
        for parameter in self._trained if cell.grad_accum_fusion else []:
            parameter.main_grad = torch.zeros(  # type: ignore[attr-defined]
                parameter.shape, dtype=torch.float32, device=parameter.device
            )
            parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]

    @property
    def _parts(self) -> Iterator[EngineLayer]:
        """Yield the model's Transformer Engine modules, with their parameters' original names."""
        return (part for padded in self._padded for part in padded.parts)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the tensor that accumulates a gradient: fp32 `main_grad` if any, else `grad`."""
        gradient: Tensor | None = getattr(parameter, "main_grad", parameter.grad)
        return gradient

    def forward_backward(self, step: int) -> None:
        """Clear gradients, quantize weights once, and accumulate all microbatches' gradients."""
        self.zero_gradients()
        self.begin()
        super().forward_backward(step)

    def my_microbatches(self, step: int) -> Iterator[tuple[int, Any]]:
        """Yield this rank's microbatches, after telling each layer the microbatch's number."""
        for number, microbatch in super().my_microbatches(step):
            for padded in self._padded:
                padded.step, padded.microbatch = step, number
            yield number, microbatch

    def zero_gradients(self) -> None:
        """Clear the gradients of the last step."""
        for parameter in self._trained:
            parameter.grad = None
            if self.cell.grad_accum_fusion:
                parameter.main_grad.zero_()  # type: ignore[attr-defined]

    def microbatch_done(self) -> None:
        """Add `grad` to each `main_grad` that no GEMM updated; record delayed scaling's state."""
        for parameter in self._trained if self.cell.grad_accum_fusion else []:
            if getattr(parameter, "grad_added_to_main_grad", False):
                self._taken.add("fused")
            accumulate(parameter)
        # Delayed scaling makes new scales after each microbatch, which the next one reads.
        for name, tensor in shown.delayed_state(self._parts):
            self._keep_of_microbatch("used_quantized", name, tensor)

    def reduce_grads(self) -> None:
        """Sum gradients over the ranks; those of a grouped weight, one expert at a time.

        From three ranks on, the order of a sum depends on the place in the tensor.
        """
        for name, parameter in self.model.named_parameters():
            gradient = self.gradient(parameter)
            for _, part in self.logical(name, gradient) if gradient is not None else ():
                dist.all_reduce(part)

    def evaluate(self) -> None:
        """Evaluate with weights that are quantized anew, not with cached copies."""
        self.begin()
        super().evaluate()

    def logical(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Split a grouped weight or bias into those of the single experts, by name."""
        parts = self._split.get(name, (name,))
        return zip(parts, tensor.unbind(), strict=True) if len(parts) > 1 else [(parts[0], tensor)]

    def piece(self, kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
        """Return an observation of a tensor's dequantized values, to record."""
        return super().piece(kind, name, shown.values_of(tensor), local=local)

    def show(
        self, kind: str, name: str, tensor: Tensor, capture: Capture, **how: bool
    ) -> Iterator[Observation]:
        """Yield observations of a tensor's values, or of an fp8 moment's bytes, to record."""
        values = shown.codes_of(tensor) if kind in MOMENTS else shown.values_of(tensor)
        return super().show(kind, name, values, capture, **how)

    def observe_state(self, capture: Capture) -> Iterator[Observation]:
        """Yield observations of all state kept between steps, bytes and scales included."""
        yield from super().observe_state(capture)
        for name, parameter in self.masters():
            first, _ = next(iter(self.logical(name, parameter)))
            for key, scale in shown.state_scales(self.optimizer, parameter):
                yield from self.show(f"{key}_scale", first, scale, capture, split=False)
        for kind, name, tensor in shown.te_quantized_state(self._parts):
            local = kind == "recorded_amax"
            yield from self.show(kind, name, tensor, capture, split=False, local=local)

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield the tensors to compare after a training phase, used quantized weights included."""
        yield from super().observe(phase, capture)
        yield from capture.kept("used_quantized")
        if phase in ("forward_backward", "evaluate"):
            for name, tensor in shown.te_used_quantized(self._parts):
                yield from self.show("used_quantized", name, tensor, capture, split=False)

    def paths(self) -> set[str]:
        """Return which of the code paths `fused`, `grouped`, `quantized` the layers have taken."""
        stored = {
            "grouped": any(map(shown.is_grouped, self._parts)),
            "quantized": any(map(shown.is_quantized, self._parts)),
        }
        return super().paths() | self._taken | {path for path, taken in stored.items() if taken}

    def save(self, folder: Path) -> None:
        """Write this rank's state by `torch.save`, as scripts with Transformer Engine do."""
        folder.mkdir(exist_ok=True)
        torch.save(self.state_dict(), folder / f"rank{self.rank}.pt")

    def load(self, folder: Path) -> None:
        """Load this rank's state, including pickled state of delayed scaling.

        Raises:
            ValueError: other modules have saved it, such as those of the other side of a cell.
        """
        os.environ["NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"] = "1"
        state = torch.load(folder / f"rank{self.rank}.pt", weights_only=False)
        foreign = sorted(state["model"].keys() ^ self.model.state_dict().keys())
        if foreign:
            raise ValueError(
                expected_but_got(
                    "a checkpoint of the same modules of Transformer Engine",
                    f"{foreign[0]}, which only the checkpoint or only the model has",
                    "leave swap out of the sequence: such checkpoints name modules",
                )
            )
        self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the state dicts of model and optimizer, and the other training state."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return state | self.state_beside_weights()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a `state_dict` that an engine of the same layout returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.load_state_beside_weights(state)

    def begin(self) -> None:
        """Begin a step or an evaluation: make the next forward quantize the weights again."""
        for padded in self._padded:
            padded.first = True


def _logical_names(model: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each parameter's name, with the names of the original model's tensors in it."""
    for name, module in model.named_modules():
        if isinstance(module, Padded):
            yield from ((f"{name}.{te_name}", names) for te_name, names in module.logical.items())
