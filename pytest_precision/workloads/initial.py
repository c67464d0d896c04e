"""Initial values: of all parameters but one the same numbers in bf16 as in fp32."""

from __future__ import annotations

import torch
from torch import nn

_GAIN = (0.6, 0.9)
_BIAS = (-0.2, 0.2)


def initialised(model: nn.Module, *, rounded: bool) -> nn.Module:
    """Draw all parameters of `model` anew from torch's global generator, and return `model`.

    Matrices are normal with standard deviation `1 / sqrt(columns)`; other parameters are uniform,
    gains below 1 and biases around 0: a gain of 1 or a bias of 0 would hide that it is not applied.
    Floating buffers are drawn as biases are. All parameters but the last one are rounded to bf16,
    so that storing them in bf16 makes no difference at the start; it does to the last one.

    Args:
        model: the model.
        rounded: whether the last one is rounded too.
    """
    *_, between = model.parameters()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.uniform_(*(_BIAS if name.endswith("bias") else _GAIN))
            if rounded or parameter is not between:
                parameter.copy_(parameter.bfloat16())
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.uniform_(*_BIAS)
    return model
