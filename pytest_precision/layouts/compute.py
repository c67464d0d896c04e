"""Compute in one dtype with a model that is stored in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pytest_precision import _torch


class ComputeIn(nn.Module):
    """Calls a module with its floating parameters cast to `dtype`, and casts what it recomputes.

    Gradients arrive in the storage dtype, each the exact upcast of a gradient in `dtype`, which is
    what FSDP2's `MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=<storage dtype>)` computes.
    The two gradients of a parameter that two regions of `checkpoint(use_reentrant=True)` share are
    upcast before they are added rather than after.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, with its own arguments, on cast parameters."""
        cast = {
            name: p.to(self.dtype) if p.is_floating_point() else p
            for name, p in self.module.named_parameters()
        }
        result = functional_call(self.module, cast, args, kwargs)
        backward = _Backward(self.module, cast)
        for output in _torch.tree_leaves(result):
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(backward.begin)  # type: ignore[no-untyped-call]
        return result


class _Backward:
    """Keeps the cast parameters in a module while a backward runs.

    Activation recomputation calls parts of the module there, long after `functional_call` is over.
    """

    def __init__(self, module: nn.Module, cast: Mapping[str, Tensor]) -> None:
        stored = dict(module.named_parameters())
        self._cast = {id(stored[name]): tensor for name, tensor in cast.items()}
        self._module = module
        self._stored: list[tuple[nn.Module, str, nn.Parameter]] = []

    def begin(self, _gradient: Tensor) -> None:
        """Put the cast parameters into the module when the first gradient of an output arrives."""
        if self._stored:
            return
        self._stored = [
            (module, name, parameter)
            for module in self._module.modules()
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        ]
        for module, name, parameter in self._stored:
            _torch.put_parameter(module, name, self._cast[id(parameter)])
        _torch.after_backward(self._end)

    def _end(self) -> None:
        for module, name, parameter in self._stored:
            _torch.put_parameter(module, name, parameter)
        self._stored = []


def compute_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return `module` itself where its parameters are in `dtype`, else `ComputeIn` around it."""
    stored = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return module if stored == {dtype} else ComputeIn(module, dtype)
