"""An fp32 master weight kept as its bf16 parameter and a 16-bit remainder.

The remainder is the low half of the master's bits, as a signed integer; the parameter is the high
half, one up where the remainder is negative. So the parameter is the master rounded to bf16 with
ties away from zero (every other path from a master to a parameter rounds ties to even), and
`master bits = parameter bits * 2**16 + remainder` modulo 2**32.

A remainder is bits, not a value: casting fp32 masters to int16 makes 0 of every weight below 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def split(master: Tensor) -> tuple[Tensor, Tensor]:
    """The bf16 parameter and the int16 remainder of fp32 masters.

    The exact inverse of `join` for every bit pattern. A NaN whose low half rounds its high half up
    past the last pattern gives the parameter -0, as it does in Transformer Engine.
    """
    bits = master.view(torch.int32)
    remainder = bits.to(torch.int16)
    rounded = bits.add(0x8000).bitwise_right_shift_(16)
    return rounded.to(torch.int16).view(torch.bfloat16), remainder


def join(parameter: Tensor, remainder: Tensor) -> Tensor:
    """The fp32 masters that `split` took apart."""
    bits = parameter.view(torch.int16).to(torch.int32).bitwise_left_shift_(16)
    return bits.add_(remainder).view(torch.float32)
