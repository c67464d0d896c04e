"""Linear layers whose GEMMs multiply quantized operands, as Transformer Engine's layers do.

    modules.quantize_linears(model, "mxfp8")
    modules.begin_microbatch(model, step=1, microbatch=0, first=True)
    loss(model(batch)).backward()
    modules.finish_step(model)

Each GEMM multiplies dequantized operands in fp32; y and dx are rounded to bf16 once. The names are
loaded when they are first used: importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.engine.quantizing import begin_microbatch, finish_step
    from pytest_precision.modules.grouped import GroupedLinear
    from pytest_precision.modules.linear import Linear
    from pytest_precision.modules.parameter import QuantizedParameter
    from pytest_precision.modules.replace import quantize_linears

__all__ = [
    "GroupedLinear",
    "Linear",
    "QuantizedParameter",
    "begin_microbatch",
    "finish_step",
    "quantize_linears",
]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        ".engine.quantizing": ("begin_microbatch", "finish_step"),
        "grouped": ("GroupedLinear",),
        "linear": ("Linear",),
        "parameter": ("QuantizedParameter",),
        "replace": ("quantize_linears",),
    },
)
