"""In which dtype a layout stores and computes: what the cell asks for, or a refusal."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pytest_precision.cell import Cell

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""The unquantized precisions that the layouts on torch's own optimizers know."""


def dtypes(
    cell: Cell, layout: str, *, primary_weights: tuple[str, ...] = tuple(DTYPES)
) -> tuple[torch.dtype, torch.dtype]:
    """Storage dtype of the resident parameters and compute dtype of `cell`.

    Raises:
        ValueError: if `layout` does not do what the cell asks for, so that no cell passes by
            running something else.
    """
    for axis, value, known in (
        ("precision", cell.precision, tuple(DTYPES)),
        ("primary_weight", cell.primary_weight, primary_weights),
        ("grad_accum_fusion", cell.grad_accum_fusion, (False,)),
    ):
        if value not in known:
            raise ValueError(
                f"layout {layout} knows {axis} {', '.join(map(str, known))} but the cell has "
                f"{axis}={value!r}; leave it out of the matrix or use another layout"
            )
    return DTYPES[cell.primary_weight], DTYPES[cell.precision]


class ComputeIn(nn.Module):
    """Calls a module with its floating parameters cast to `dtype`.

    Gradients arrive in the storage dtype, each the exact upcast of a gradient in `dtype`, which is
    what FSDP2's `MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=<storage dtype>)` computes.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; the arguments are its own."""
        cast = {name: p.to(self.dtype) for name, p in self.module.named_parameters()}
        return functional_call(self.module, cast, args, kwargs)


def compute_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`module` itself where its parameters are in `dtype`, else `ComputeIn`."""
    stored = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return module if stored == {dtype} else ComputeIn(module, dtype)
