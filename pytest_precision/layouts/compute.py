"""A wrapper that computes in one dtype with a model whose parameters are stored in another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import tree_leaves
from pytest_precision._torch.training import after_backward, put_parameter


class ComputeIn(nn.Module):
    """Wraps a module to compute in `dtype` by cast parameters, also in activation checkpointing.

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
        """Call the module with cast parameters."""
        cast = _Cast(self.module, self.dtype)
        cast.put()
        try:
            result = self.module(*args, **kwargs)
        finally:
            cast.take_back()
        for output in tree_leaves(result):
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(cast.begin_backward)  # type: ignore[no-untyped-call]
        return result


class _Cast:
    """A model's parameters cast to another dtype, swapped in for one forward and backward.

    Activation recomputation calls parts of the module in the backward. `torch.func.functional_call`
    would do for the forward alone, and leaves a tensor behind in a module that has two names.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._stored = [
            (part, name, parameter)
            for part in module.modules()
            for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False)
        ]
        # Places that share a parameter share the cast one, too.
        self._cast = {
            id(p): p.to(dtype) if p.is_floating_point() else p for _, _, p in self._stored
        }
        self._is_put = False

    def put(self) -> None:
        """Put the cast parameters into the module."""
        for part, name, parameter in self._stored:
            put_parameter(part, name, self._cast[id(parameter)])
        self._is_put = True

    def take_back(self) -> None:
        """Put the original parameters back."""
        for part, name, parameter in self._stored:
            put_parameter(part, name, parameter)
        self._is_put = False

    def begin_backward(self, _gradient: Tensor) -> None:
        """Put the cast parameters into the module for the duration of a backward pass."""
        if not self._is_put:
            self.put()
            after_backward(self.take_back)


def compute_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return `module` if its parameters are in `dtype`, else a wrapper that casts them to it."""
    stored = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return module if stored == {dtype} else ComputeIn(module, dtype)
