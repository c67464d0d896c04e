"""Number formats of low-precision training, bit for bit as Transformer Engine computes them.

    quantized = formats.by_name("mxfp8_e4m3").quantize(x)
    quantized.rowwise.data, quantized.rowwise.scale, quantized.dequantize(torch.bfloat16)

The names are loaded when they are first used: importing this package imports no torch.
Subnormal numbers must not be flushed to zero (`torch.set_flush_denormal(False)`, which is torch's
default): at the ends of the range of e8m0, a scale or its inverse is subnormal in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.formats.delayed import DelayedScaling
    from pytest_precision.formats.format import Format, Reducible
    from pytest_precision.formats.quantized import Operand, QuantizedTensor, Storage
    from pytest_precision.formats.registry import by_name, names, recipe

__all__ = [
    "DelayedScaling",
    "Format",
    "Operand",
    "QuantizedTensor",
    "Reducible",
    "Storage",
    "by_name",
    "names",
    "recipe",
]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "delayed": ("DelayedScaling",),
        "format": ("Format", "Reducible"),
        "quantized": ("Operand", "QuantizedTensor", "Storage"),
        "registry": ("by_name", "names", "recipe"),
    },
)
