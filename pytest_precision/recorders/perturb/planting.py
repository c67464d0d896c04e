"""Wrap methods of any engine and its optimizer to plant a defect."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.engine import Engine

ParamGroup = dict[str, Any]


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing; the default of the functions to call before and after a method."""


def around(
    engine: Engine,
    method: str,
    *,
    before: Callable[..., Any] = nothing,
    after: Callable[[Any], object] = nothing,
) -> None:
    """Wrap a method of an engine so that `before` runs before each call, and `after` after it.

    `before` takes the method's arguments; `after` takes what `before` returned.
    """
    original = getattr(engine, method)

    @wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            state = before(*args, **kwargs)
        result = original(*args, **kwargs)
        with torch.no_grad():
            after(state)
        return result

    setattr(engine, method, called)


def scale_losses(engine: Engine, factor: Callable[[int], float]) -> None:
    """Multiply the loss of each microbatch by a factor that depends on the train step."""
    original = engine.backward
    step = [0]
    around(engine, "forward_backward", before=lambda number: step.__setitem__(0, number))

    @wraps(original)
    def backward(loss: Tensor) -> None:
        original(loss * factor(step[0]))

    engine.backward = backward  # type: ignore[method-assign]


def around_step(
    engine: Engine,
    *,
    before: Callable[[], Any] = nothing,
    after: Callable[[Any], object] = nothing,
) -> None:
    """Call a function before each optimizer step, and another one after it with its result."""
    states: list[Any] = []

    @torch.no_grad()
    def enter(*_: Any) -> None:
        states.append(before())

    @torch.no_grad()
    def leave(*_: Any) -> None:
        after(states.pop())

    engine.optimizer.register_step_pre_hook(enter)
    engine.optimizer.register_step_post_hook(leave)


def with_numbers(engine: Engine, change: Callable[[ParamGroup], ParamGroup]) -> None:
    """Replace options such as `lr` in the optimizer's groups while each step runs."""
    groups = engine.optimizer.param_groups

    def put() -> list[ParamGroup]:
        changed = [change(group) for group in groups]
        before = [
            {key: group[key] for key in options}
            for group, options in zip(groups, changed, strict=True)
        ]
        for group, options in zip(groups, changed, strict=True):
            group.update(options)
        return before

    def take_back(before: list[ParamGroup]) -> None:
        for group, options in zip(groups, before, strict=True):
            group.update(options)

    around_step(engine, before=put, after=take_back)


def gradients(engine: Engine) -> list[Tensor]:
    """Return the tensors in which the gradients of an engine's model accumulate."""
    tensors = map(engine.gradient, engine.model.parameters())
    return [tensor for tensor in tensors if tensor is not None]


def round_to_bf16(tensor: Tensor) -> None:
    """Round an fp32 tensor to bf16 values in place; leave other dtypes unchanged."""
    if tensor.dtype == torch.float32:
        tensor.copy_(tensor.bfloat16())
