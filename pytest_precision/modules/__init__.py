"""Linear layers that multiply quantized operands, in Transformer Engine's flow of operands.

    modules.quantize_linears(model, "mxfp8")
    modules.begin_microbatch(model, step=1, microbatch=0, first=True)
    loss(model(batch)).backward()
    modules.finish_step(model)

Each GEMM multiplies dequantized operands in fp32 and rounds its result to bf16 once. The names are
loaded when they are first used: importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_precision.modules.grouped import GroupedLinear
    from pytest_precision.modules.layer import Layer, begin_microbatch
    from pytest_precision.modules.linear import Linear
    from pytest_precision.modules.parameter import QuantizedParameter
    from pytest_precision.modules.replace import quantize_linears
    from pytest_precision.modules.slots import Quantizers, Slot, finish_step
    from pytest_precision.modules.state import quantized_state, used_quantized

__all__ = [
    "GroupedLinear",
    "Layer",
    "Linear",
    "QuantizedParameter",
    "Quantizers",
    "Slot",
    "begin_microbatch",
    "finish_step",
    "quantize_linears",
    "quantized_state",
    "used_quantized",
]

# A function and its module must not share a name: importing the module would replace the function.
_HOMES = {
    "grouped": ("GroupedLinear",),
    "layer": ("Layer", "begin_microbatch"),
    "linear": ("Linear",),
    "parameter": ("QuantizedParameter",),
    "replace": ("quantize_linears",),
    "slots": ("Quantizers", "Slot", "finish_step"),
    "state": ("quantized_state", "used_quantized"),
}


def __getattr__(name: str) -> Any:
    for module, exported in _HOMES.items():
        if name in exported:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
