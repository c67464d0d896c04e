"""Split an fp32 master weight into its bf16 parameter and a 16-bit remainder, and join both.

The remainder is the low half of the master's bits as a signed integer; the parameter is the high
half, plus one if the remainder is negative. So the parameter is the master rounded to bf16 with
ties away from zero (every other path from a master to a parameter rounds ties to even), and
`master bits = parameter bits * 2**16 + remainder` modulo 2**32.

A remainder is bits, not a value: casting fp32 masters to int16 turns every weight below 1 into 0.

NaN is the only master that is not kept bit for bit: whatever its bits are, it becomes the quiet NaN
0x7FC0 with the remainder 0. In the arithmetic of Transformer Engine's kernel (the functors with
remainders in `transformer_engine/common/multi_tensor/adam.cu`, 2.20), the NaN that CUDA computes,
0x7FFFFFFF, has a negative remainder, so the carry makes its high half 0x8000: the parameter is -0,
training continues with a weight of zero, and only the master shows the NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

QUIET_NAN = 0x7FC00000
"""The bits with which every NaN is stored: the low half is 0, so there is no carry."""


def split(master: Tensor) -> tuple[Tensor, Tensor]:
    """Split fp32 masters into bf16 parameters and int16 remainders.

    `join` restores every number and both infinities bit for bit; a NaN stays a NaN.
    """
    bits = master.view(torch.int32).masked_fill(master.isnan(), QUIET_NAN)
    remainder = bits.to(torch.int16)
    rounded = bits.add(0x8000).bitwise_right_shift_(16)
    return rounded.to(torch.int16).view(torch.bfloat16), remainder


def join(parameter: Tensor, remainder: Tensor) -> Tensor:
    """Restore the fp32 masters of bf16 parameters and int16 remainders."""
    bits = parameter.view(torch.int16).to(torch.int32).bitwise_left_shift_(16)
    return bits.add_(remainder).view(torch.float32)
