"""One Adam update in fp32, with the operations in the order of Transformer Engine's kernel.

Source: `transformer_engine/common/multi_tensor/adam.cu` of Transformer Engine 2.20. That kernel is
built with fast math, so its last bits on a GPU differ; here every operation is rounded to fp32
once, as IEEE 754 requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 16
"""Elements updated at once on a CPU, so few that their temporaries stay in its cache."""


@dataclass(frozen=True, slots=True)
class KernelScalars:
    """The scalar arguments of one Adam update, rounded to fp32.

    Attributes:
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        rest1: 1 - beta1 computed in fp32, which is not the decimal 1 - beta1 rounded to fp32.
        rest2: 1 - beta2 computed in fp32.
        correction1: divisor of the first moment, 1 - beta1**step; 1 without bias correction.
        correction2: divisor of the second moment, 1 - beta2**step; 1 without bias correction.
        eps: term added to the denominator.
        weight_decay: decoupled weight decay or L2 regularisation.
        adam_w_mode: whether the weight decay is decoupled.
    """

    lr: float
    beta1: float
    beta2: float
    rest1: float
    rest2: float
    correction1: float
    correction2: float
    eps: float
    weight_decay: float
    adam_w_mode: bool

    @classmethod
    def of(cls, group: dict[str, Any], adam_w_mode: bool) -> KernelScalars:
        """Compute an update's scalars from a parameter group whose `step` was already advanced."""
        betas = [fp32(beta) for beta in group["betas"]]
        # The kernel's host code also computes the power of the fp32 beta in fp64, and rounds once.
        corrections = [
            fp32(1 - beta ** group["step"]) if group["bias_correction"] else 1.0 for beta in betas
        ]
        return cls(
            lr=fp32(group["lr"]),
            beta1=betas[0],
            beta2=betas[1],
            rest1=fp32(1 - betas[0]),
            rest2=fp32(1 - betas[1]),
            correction1=corrections[0],
            correction2=corrections[1],
            eps=fp32(group["eps"]),
            weight_decay=fp32(group["weight_decay"]),
            adam_w_mode=adam_w_mode,
        )


def adam_(p: Tensor, grad: Tensor, m: Tensor, v: Tensor, scalars: KernelScalars) -> None:
    """Do one Adam update of fp32 weights and moments in place; for DTensors, of the local shards.

    Args:
        p: the weights.
        grad: the gradient, in any floating dtype.
        m: first moment.
        v: second moment.
        scalars: scalars of this step.
    """
    for chunk in _chunks(_held_tensor(p), _held_tensor(grad), _held_tensor(m), _held_tensor(v)):
        _update_(chunk, scalars)


def _held_tensor(tensor: Tensor) -> Tensor:
    # By name, since importing the class takes half a second; an uneven shard cannot be flattened.
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    # On a GPU, few large kernels are faster than many small ones, whatever its cache holds.
    if tensors[0].device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
        return zip(
            *(torch.split(tensor.view(-1), CHUNK_ELEMENTS) for tensor in tensors), strict=True
        )
    return iter([tensors])


def _update_(tensors: tuple[Tensor, ...], s: KernelScalars) -> None:
    p, grad, m, v = tensors
    g = grad.float()
    if not s.adam_w_mode:
        g = p.mul(s.weight_decay).add_(g)
    m.mul_(s.beta1).add_(g.mul(s.rest1))
    v.mul_(s.beta2).add_(g.mul(s.rest2).mul_(g))
    # Divide by tensors: on some devices, torch divides by a number through its reciprocal.
    update = m.div(m.new_full((), s.correction1))
    denominator = sqrt(v.div(v.new_full((), s.correction2))).add_(s.eps)
    update.div_(denominator)
    if s.adam_w_mode:
        update.add_(p.mul(s.weight_decay))
    p.sub_(update.mul_(s.lr))


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
