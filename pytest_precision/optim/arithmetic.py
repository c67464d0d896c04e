"""fp32 arithmetic that gives the same bits on every machine, where torch's own does not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def fp32(value: float) -> float:
    """Round a Python number to fp32, as happens when it is passed to a kernel as a `float`."""
    return float(np.float32(value))


def sqrt(values: Tensor) -> Tensor:
    """Compute the correctly rounded square root, in the dtype of `values`.

    `torch.sqrt` of fp32 on a CPU may call a vector library whose result is off by one unit in the
    last place. The root is therefore computed in fp64 and then rounded to fp32. The root of a
    24-bit number is never so close to the middle of two fp32 numbers that rounding it twice could
    change the result.
    """
    if values.device.type == "cpu" and values.dtype == torch.float32:
        return values.double().sqrt_().float()
    return values.sqrt()
