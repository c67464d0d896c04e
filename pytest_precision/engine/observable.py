"""Define which tensors of a training loop are recorded after each phase, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.engine import groups
from pytest_precision.engine.capture import Capture, ModuleHook
from pytest_precision.engine.changes import Changes, Since
from pytest_precision.engine.engine_state import EngineState
from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.engine.modes import module_settings
from pytest_precision.engine.observation import Observation, piece
from pytest_precision.engine.quantizing import paths, used_quantized
from pytest_precision.engine.read_only import writable
from pytest_precision.engine.readable import expect_known, stored
from pytest_precision.matrix.tensor_key import expect_one_name_each, unwrapped
from pytest_precision.ranks.state.accelerator import capturing


class Observable:
    """The base class of training engines, which yields what each phase of a step changed.

    Attributes:
        model: holds the resident parameters, which are observed as `param`.
        optimizer: everything in its `state` is observed.
        scaler: dynamic loss scaling, or None.
        capture: takes what must be shown at once, before `observe` is called.
        grad_norm: norm of all gradients before the last clipping; a loop of your own sets it. If it
            is not finite, the step has overflowed.
        grad_factor: divisor of local gradients before they are shown.
    """

    grad_factor: float = 1.0

    passing: ClassVar[frozenset[str]] = frozenset({"microbatch", "step_tokens"})
    """Numbers of an engine that belong to a step, and that the next one sets anew."""

    unobservable: ClassVar[Mapping[str, str]] = {}
    """Kinds that this engine cannot show, each with the reason; nothing compares them.

    The test must accept each, except local gradients and what is compared where it is used.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: LossScale | None
    ) -> None:
        expect_known(model)
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.grad_norm = torch.zeros(())
        self.capture = Capture()
        self._since = Since()

    def start(self, capture: Capture) -> None:
        """Register the forward hooks that copy each weight when a module is about to read it.

        Args:
            capture: receives it.
        """
        self.capture = capture
        named = [*self.model.named_parameters()]
        if any(unwrapped(name) != name for name, _ in named):
            logical_parts = (self.logical(name, parameter) for name, parameter in named)
            expect_one_name_each(name for parts in logical_parts for name, _ in parts)
        self._since.settings = module_settings(self.named_modules())
        self._since.trained = self._training_state(capture).gets_gradients()
        for prefix, module in self.model.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                hook = ModuleHook(partial(self._keep_used, prefix))
                module.register_forward_pre_hook(hook)

    def observe(self, phase: str, capture: Capture) -> Iterator[Observation]:
        """Yield the tensors that a phase of a train step may change, each as this rank's shard.

        - `forward_backward`: weights as the forward read them, decisions, losses, and this rank's
          gradients.
        - `reduce_grads`: reduced gradients.
        - `clip_grads`: the norm, and the learning rates that the update is about to read.
        - `optimizer_step`: all state.
        - `evaluate`: weights as they were read, losses, hyperparameters and all state.
        - `init`, `skip`, `save`, `load`: hyperparameters and all state.
        - `end`, after the last operation: hyperparameters.

        Args:
            phase: one of these, which has just run.
            capture: holds what was handed over while it ran.
        """
        if phase == "forward_backward":
            yield from self._observe_forward(capture)
            yield from capture.kept("grad")
            yield from self._observe_grads("grad", capture, factor=self.grad_factor, local=True)
        elif phase == "reduce_grads":
            yield from self._observe_grads("reduced_grad", capture)
        elif phase == "clip_grads":
            yield from self.show("grad_norm", "total", self.grad_norm, capture, split=False)
            yield from [*capture.kept("lr")] or self._observe_groups(self._since.options)
        elif phase == "end":
            yield from self._observe_groups()
        else:
            if phase == "evaluate":
                yield from self._observe_forward(capture)
            if phase != "optimizer_step":  # there, the scheduler has set the next step's already
                yield from self._observe_groups()
            if phase == "load":
                self._since.policies.show_all()
            yield from self.observe_state(capture)

    def observe_state(self, capture: Capture) -> Iterator[Observation]:
        """Yield all state carried to the next step, except options of parameter groups."""
        return self._training_state(capture).observe()

    def _training_state(self, capture: Capture) -> EngineState:
        return EngineState(self, capture, self._since)

    def watch_changes(self) -> None:
        """Remember the Python attributes after the first backward, to find changes later.

        It is called after the first forward and backward, in which frameworks finish to set things
        up.
        """
        if not self._since.attributes.begun:
            state = self._training_state(self.capture)
            state.begin()
            self._since.options.begin(groups.group_options(state.all_groups()))

    def starts(self) -> dict[str, dict[str, str]]:
        """Return the first values of tensors that are shown only after a change, by kind."""
        return self._training_state(self.capture).starts()

    @property
    def optimized_model(self) -> nn.Module:
        """Return the module whose parameters the optimizer updates: `model`, unless overridden."""
        return self.model

    def paths(self) -> set[str]:
        """Return which of the code paths `fused`, `grouped`, `quantized` the layers have taken."""
        return paths(self.model)

    def violations(self) -> Iterator[str]:
        """Yield a sentence for each tensor that is not stored as the engine promises.

        A layout that promises something overrides this.
        """
        return iter(())

    def named_modules(self) -> Iterable[tuple[str, nn.Module]]:
        """Return the model's modules by name, where wrappers such as DDP are left out."""
        return {unwrapped(path): module for path, module in self.model.named_modules()}.items()

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter name, tensor) for each tensor that the optimizer updates, by group.

        A tensor that is no parameter of `optimized_model` is named by its position there.
        """
        names = {id(p): name for name, p in self.optimized_model.named_parameters()}
        for place, parameter in groups.places(groups.group_members(self.optimizer)):
            yield names.get(id(parameter), place), parameter

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """Return the tensor in which a parameter's gradient accumulates; None if it has none."""
        return parameter.grad

    def effective(self, parameter: Tensor) -> Tensor:
        """Return the effective weight of a parameter: the most precise one that its optimizer
        keeps.

        It has the parameter's shape, and is the parameter unless overridden. An optimizer that
        keeps a master, a remainder or a compensation for it has a more precise weight than
        `parameter` itself; that weight is observed as `master`.
        """
        return parameter

    def logical(self, name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Split a fused tensor into its model tensors, as (name, tensor), such as Q, K and V.

        Unless overridden, a tensor is one model tensor. Names of wrappers for activation
        checkpointing, FSDP1 and `torch.compile` are taken out of what is yielded here.

        Args:
            name: as `named_parameters` of the model has it.
            tensor: the tensor of that name, or one of its shape, such as its gradient.
        """
        yield name, tensor

    def logical_parts(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield (name without wrappers, tensor) for the parts of a fused tensor such as QKV."""
        return ((unwrapped(part_name), part) for part_name, part in self.logical(name, tensor))

    def piece(self, kind: str, name: str, tensor: Tensor, *, local: bool = False) -> Observation:
        """Return an observation of this rank's shard, with its place in the unsharded tensor."""
        return piece(kind, name, writable(tensor), local=local)

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
        """Yield observations of a tensor to record; none if its kind is in `unobservable`.

        Args:
            kind: see `Observation`.
            name: name of the stored tensor.
            tensor: a tensor of any dtype; it may be a DTensor or another subclass.
            capture: that of the run, of which an engine that overrides this may need to know.
            split: whether `logical` splits the tensor.
            local: see `Observation`.
        """
        if kind in self.unobservable:
            return
        for stored_part in stored(kind, tensor):
            apart = split and stored_part.tensor.shape == tensor.shape
            whole = [(unwrapped(name), stored_part.tensor)]
            parts = self.logical_parts(name, stored_part.tensor) if apart else whole
            for logical_name, part in parts:
                shown = reduced(part.detach())
                yield self.piece(
                    stored_part.kind, logical_name, shown, local=local or stored_part.local
                )

    def reads(self, prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) for each parameter that the forward of `module` is about to read."""
        yield from module.named_parameters(prefix, recurse=False)

    def _keep_used(self, prefix: str, module: nn.Module, _inputs: Any) -> None:
        if capturing():  # nothing can be read, and replays of the CUDA graph call no hook
            return
        for name, read in self.reads(prefix, module):
            observations = self.show("used_param", name, read, self.capture)
            self.capture.keep("used_param", name, observations)

    def _observe_grads(
        self, kind: str, capture: Capture, *, factor: float = 1.0, local: bool = False
    ) -> Iterator[Observation]:
        for name, parameter in self.model.named_parameters():
            gradient = self.gradient(parameter)
            if gradient is not None:
                scaled_tensor = gradient if factor == 1.0 else gradient / factor
                yield from self.show(kind, name, scaled_tensor, capture, local=local)

    def _observe_forward(self, capture: Capture) -> Iterator[Observation]:
        yield from capture.kept("used_param")
        for name, tensor in used_quantized(self.model):
            yield from self.show("used_quantized", name, tensor, capture)
        yield from capture.kept("decision")
        yield from capture.kept("loss")

    def keep_rates(self) -> None:
        """Copy the learning rates before an update that also runs the scheduler."""
        self.capture.keep("lr", "groups", self._observe_groups(self._since.options))

    def _observe_groups(self, changes: Changes | None = None) -> Iterator[Observation]:
        """Yield the learning rates and the other options of the optimizer's parameter groups.

        With `changes`, only the other options that have changed are yielded.
        """
        named_groups = self._training_state(self.capture).all_groups()
        yield from groups.learning_rates(named_groups)
        yield from groups.other_numbers(named_groups, changes)

    def named_groups(self) -> groups.Groups:
        """Yield each parameter group of the optimizer with its parameters' names."""
        logical = (self.logical_parts(name, master) for name, master in self.masters())
        members = groups.group_members(self.optimizer)
        return groups.groups_with_names(members, ([name for name, _ in parts] for parts in logical))


def full(tensor: Tensor) -> Tensor:
    """Return a DTensor gathered whole, which is a collective, and any other tensor unchanged."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def reduced(tensor: Tensor) -> Tensor:
    """Return a DTensor that is a partial sum as the sum, and any other tensor unchanged.

    Only the former is a collective: a shard stays one.
    """
    if not is_dtensor(tensor) or not any(p.is_partial() for p in tensor.placements):
        return tensor
    from torch.distributed.tensor import Replicate

    return tensor.redistribute(
        placements=[Replicate() if p.is_partial() else p for p in tensor.placements]
    )
