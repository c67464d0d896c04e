"""Private names of torch on modules, optimizers, clipping and the backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision._torch.call_stack import is_within

SCHEDULER_RATES = "_last_lr"

SCHEDULER_BOOKKEEPING = frozenset({"_step_count", "_is_initial", "_get_lr_called_within_step"})
"""Attributes by which a scheduler warns of calls in the wrong order."""

MAKES_STATE = "_init_optim_state", "torch/distributed/checkpoint/state_dict.py"
"""Function by which torch's checkpoints make the state of an optimizer, and the end of its file."""


def makes_state() -> bool:
    """Return whether a checkpoint function of torch makes the state of an optimizer just now.

    `get_state_dict`, `set_state_dict` and their kin do so by a step with zero gradients and a rate
    of zero, which is no train step. No public name tells it from one.
    """
    return is_within(*MAKES_STATE)


def put_parameter(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Set a plain tensor as a module's parameter, as `functional_call` does."""
    module._parameters[name] = tensor  # type: ignore[assignment]


def own_parameters(module: nn.Module) -> Collection[tuple[str, Tensor]]:
    """Return (attribute, parameter) for the parameters that a module holds directly, each once.

    `named_parameters` takes ten times as long, and a recorder asks in each step of each module. A
    module that has a method of its own is asked by it.
    """
    if type(module).named_parameters is nn.Module.named_parameters:
        parameters: Any = module._parameters  # FSDP2 has its shards there
        named = [(key, weight) for key, weight in parameters.items() if weight is not None]
        if len({id(parameter) for _, parameter in named}) == len(named):  # none twice
            return named
    return [*module.named_parameters(recurse=False)]


def after_backward(function: Callable[[], None]) -> None:
    """Call `function` at the end of the running backward, as FSDP2 and DDP do."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def global_hooks() -> Iterator[tuple[str, str, object]]:
    """Yield (`modules` or `optimizers`, kind of hook, hook) for each global hook of torch.

    torch has public functions to register them, but none to list them.
    """
    from torch.nn.modules import module
    from torch.optim import optimizer

    for target, holder in (("modules", module), ("optimizers", optimizer)):
        for name, hooks in vars(holder).items():
            if name.startswith("_global_") and name.endswith("hooks") and isinstance(hooks, dict):
                for hook in hooks.values():
                    yield target, name.removeprefix("_global_"), hook


def call_first(module: nn.Module, handle: Any) -> None:
    """Move a registered forward pre-hook before the module's other hooks.

    `register_forward_pre_hook(prepend=True)` says so when a hook is registered, and not later.
    """
    hooks: Any = module._forward_pre_hooks
    hooks.move_to_end(handle.id, last=False)


def function_that_scales() -> tuple[Any, str]:
    """Return (object, attribute name) of the function by which `clip_grad_norm_` scales gradients.

    `clip_grad_norm_` finds it by its private name.
    """
    from torch.nn.utils import clip_grad

    return place_of(clip_grad, "_clip_grads_with_norm_")


def place_of(holder: Any, name: str) -> tuple[Any, str]:
    """Return (object, attribute name) to assign to in order to replace a function for all callers.

    What is imported is a wrapper, such as `no_grad`, which has the function in a cell of its own;
    no public name leads there. A function without one lies where it is defined.
    """
    function = getattr(holder, name)
    wrapped = getattr(function, "__wrapped__", None)
    cells = (cell for cell in function.__closure__ or () if cell.cell_contents is wrapped)
    return next(((cell, "cell_contents") for cell in cells), (holder, name))


def compiled_call(module: nn.Module) -> Any:
    """Return the function that `Module.compile` made of a module; None if not compiled.

    No hook of a module is called there, and no public name has it.
    """
    return module._compiled_call_impl


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Replace the function that `Module.compile` has made of a module."""
    module._compiled_call_impl = call


def counted_batches(module: nn.Module) -> Tensor | None:
    """Return the count of batches that a batch norm keeps; None for another module.

    It is asked of each module that is called; what lists buffers takes ten times as long.
    """
    return module._buffers.get("num_batches_tracked")


def has_own_step_hooks(optimizer: Any) -> bool:
    """Return whether hooks of an optimizer's own run after its step, and may change weights."""
    return bool(getattr(optimizer, "_optimizer_step_post_hooks", None))
