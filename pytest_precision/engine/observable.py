"""Observable: what can be observed of a training loop after each phase, and under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pytest_precision import modules
from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.engine.observation import (
    Observation,
    Span,
    cloned,
    piece,
    tensors_in,
    whole,
)
from pytest_precision.engine.readable import expect_known, stored


class Observable:
    """The part of an engine that shows what its phases did.

    Attributes:
        model: holds the resident parameters, which are observed as `param`.
        optimizer: whatever stands in its `state` is observed.
        scaler: dynamic loss scaling, or None.
        gathers_shards: show whole tensors rather than this rank's shards.
        snapshot: makes an observation that later phases cannot change.
        grad_norm: of the last clipping.
    """

    unobservable: ClassVar[Mapping[str, str]] = {}
    """Kinds that this engine cannot show, each with the reason; they are not compared.

    Beyond local gradients, and what is compared where it is used, the test must accept each.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: LossScale | None
    ) -> None:
        expect_known(model)
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.gathers_shards = False
        self.snapshot: Callable[[Observation], Observation] = cloned
        self.grad_norm = torch.zeros(())
        self._losses: dict[int, Tensor] = {}
        self._microbatches = 0
        self._used: dict[str, list[Observation]] = {}
        for prefix, module in model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                module.register_forward_pre_hook(self._remember_used(prefix))

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
                    counted = torch.tensor(float(group["step"]))
                    yield from self._observe("step", name, counted, split=False)
        for name, parameter in self.masters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                for suffix, tensor in tensors_in(value):
                    # A step counter or a scale is no tensor of the parameter's elements.
                    per_element = tensor.shape == parameter.shape
                    yield from self._observe(key, name + suffix, tensor, split=per_element)
            yield from self._observe("master", name, self.effective(parameter))
        for name, parameter in self.model.named_parameters():
            yield from self._observe("param", name, parameter)
        for kind, name, tensor in modules.quantized_state(self.model):
            local = kind == "recorded_amax"
            yield from self._observe(kind, name, tensor, local=local)
        for prefix, module in self.model.named_modules():
            # The buffers of delayed scaling are quantized state.
            if not isinstance(module, modules.DelayedScalingState):
                for name, buffer in module.named_buffers(prefix, recurse=False):
                    yield from self._observe("buffer", name, buffer, split=False, local=True)
        if self.scaler is not None:
            for name, value in self.scaler.state_dict().items():
                yield whole("loss_scale", name, torch.tensor(value, dtype=torch.float64))
        yield whole("rng", "cpu", torch.get_rng_state(), local=True)

    @property
    def optimized_model(self) -> nn.Module:
        """The module whose parameters the optimizer updates."""
        return self.model

    def paths(self) -> set[str]:
        """What was really done of `contract.PATHS`; a layout with kernels of its own adds to it."""
        layers = (module for module in self.model.modules() if isinstance(module, modules.Layer))
        return {path for layer in layers for path in layer.taken}

    def breaches(self) -> Iterator[str]:
        """What is stored otherwise than this layout promises, in words; nothing if all is well."""
        return iter(())

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that the optimizer updates, by logical name, in the optimizer's order.

        A tensor that is no parameter of `optimized_model` is named by its place in the optimizer.
        """
        names = {id(p): name for name, p in self.optimized_model.named_parameters()}
        for g, group in enumerate(self.optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                yield names.get(id(parameter), f"param_groups.{g}.params.{p}"), parameter

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Where the gradient of a parameter of `model` is accumulated and reduced."""
        return parameter.grad

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
        tensor = _plain(tensor)
        return piece(kind, name, full(tensor) if self.gathers_shards else tensor, local=local)

    def _observe(
        self, kind: str, name: str, tensor: Tensor, *, split: bool = True, local: bool = False
    ) -> Iterator[Observation]:
        for held in stored(kind, tensor):
            apart = split and held.tensor.shape == tensor.shape
            parts = self.logical(name, held.tensor) if apart else [(name, held.tensor)]
            for logical_name, part in parts:
                own = local or held.local
                yield self.piece(held.kind, logical_name, part.detach(), local=own)

    def _observe_grads(
        self, kind: str, parameters: Iterable[tuple[str, Tensor]], *, local: bool = False
    ) -> Iterator[Observation]:
        for name, parameter in parameters:
            gradient = self.gradient(parameter)
            if gradient is not None:
                yield from self._observe(kind, name, gradient, local=local)

    def _observe_forward(self) -> Iterator[Observation]:
        for used in self._used.values():
            yield from used
        for name, tensor in modules.used_quantized(self.model):
            yield from self._observe("used_quantized", name, tensor)
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


def _plain(tensor: Tensor) -> Tensor:
    """The values of a parameter that is stored as bytes; these are quantized state."""
    return tensor.dequantize() if isinstance(tensor, modules.QuantizedParameter) else tensor


def full(tensor: Tensor) -> Tensor:
    """A collective where the tensor is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
