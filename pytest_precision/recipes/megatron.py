"""Megatron-core: DDP and the distributed optimizer, and their CUDA calls on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pytest_precision.loops.locate import Locate
from pytest_precision.recipes.release import expect_release

TESTED = "0.16"


def locate(model: nn.Module, optimizer: Any) -> Locate:
    """Return the `locate` of what `get_megatron_optimizer` has made for `model`, unwrapped."""
    expect_release("megatron-core", TESTED)
    names = {parameter: name for name, parameter in model.named_parameters()}
    pieces = {}
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        for parameter, (group, order) in getattr(one, "model_param_group_index_map", {}).items():
            part = one._get_model_param_range_map(parameter)["param"]
            held = one.optimizer.param_groups[group]["params"][order]
            pieces[held] = [(names[parameter], tuple(parameter.shape), part.start, part.end)]
    for parameter, name in names.items():
        master = getattr(parameter, "main_param", None)
        if master is not None and master not in pieces:
            pieces[master] = [(name, tuple(parameter.shape), 0, parameter.numel())]
    return pieces.get


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        names_type = func is Tensor.type and len(args) == 1
        return result.replace("torch.", "torch.cuda.") if names_type else result


@contextmanager
def on_cpu() -> Iterator[None]:
    """Let the CUDA calls of Megatron-core mean the CPU."""
    current = patch("torch.cuda.current_device", lambda: torch.device("cpu"))
    with _OnCpu(), current, patch("torch.cuda.synchronize", lambda *_: None):
        yield
