"""fp32 arithmetic with the same bits on every machine, where torch's own has not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def fp32(value: float) -> float:
    """`value` rounded to fp32: what a kernel with `float` arguments sees of a Python number."""
    return float(np.float32(value))


def sqrt(values: Tensor) -> Tensor:
    """The correctly rounded square root, in the dtype of `values`.

    `torch.sqrt` of fp32 on a CPU may call a vector library that is one unit in the last place off.
    The root of a 24-bit number is never so close to the middle of two fp32 numbers that rounding it
    to fp64 first could change the result.
    """
    if values.device.type == "cpu" and values.dtype == torch.float32:
        return values.double().sqrt_().float()
    return values.sqrt()
