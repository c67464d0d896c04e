"""One Adam update in fp32, in the order of Transformer Engine's kernel.

Source: `transformer_engine/common/multi_tensor/adam.cu` of Transformer Engine 2.20. That kernel is
built with fast math, so a GPU's last bits differ; here every operation is rounded to fp32 once, as
IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_precision.optim import arithmetic

CHUNK = 1 << 16
"""Elements updated at once on a CPU: their temporaries stay in its cache."""


@dataclass(frozen=True, slots=True)
class Scalars:
    """The kernel's scalar arguments: numbers that fp32 has.

    Attributes:
        lr: learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        rest1: 1 - beta1 in fp32, which is not the fp32 number next to the decimal 1 - beta1.
        rest2: 1 - beta2 likewise.
        correction1: the bias of the first moment, 1 - beta1**step.
        correction2: the bias of the second moment.
        eps: added to the denominator.
        weight_decay: decoupled or L2.
        adam_w_mode: decoupled.
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
    def of(cls, group: dict[str, Any], adam_w_mode: bool) -> Scalars:
        """Of a group whose step counter has been advanced."""
        betas = [arithmetic.fp32(beta) for beta in group["betas"]]
        # As on the host of the kernel: the power of the fp32 beta in fp64, rounded once.
        corrections = [
            arithmetic.fp32(1 - beta ** group["step"]) if group["bias_correction"] else 1.0
            for beta in betas
        ]
        return cls(
            lr=arithmetic.fp32(group["lr"]),
            beta1=betas[0],
            beta2=betas[1],
            rest1=arithmetic.fp32(1 - betas[0]),
            rest2=arithmetic.fp32(1 - betas[1]),
            correction1=corrections[0],
            correction2=corrections[1],
            eps=arithmetic.fp32(group["eps"]),
            weight_decay=arithmetic.fp32(group["weight_decay"]),
            adam_w_mode=adam_w_mode,
        )


def adam_(p: Tensor, grad: Tensor, m: Tensor, v: Tensor, scalars: Scalars) -> None:
    """Update fp32 weights and moments in place.

    Args:
        p: the weights.
        grad: of any floating dtype.
        m: first moment.
        v: second moment.
        scalars: of this step.
    """
    for chunk in _chunks(p, grad, m, v):
        _update_(chunk, scalars)


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    # A GPU needs no cache for its temporaries, but large kernels.
    if tensors[0].device.type == "cpu" and all(tensor.is_contiguous() for tensor in tensors):
        return zip(*(torch.split(tensor.view(-1), CHUNK) for tensor in tensors), strict=True)
    return iter([tensors])


def _update_(tensors: tuple[Tensor, ...], s: Scalars) -> None:
    p, grad, m, v = tensors
    g = grad.float()
    if not s.adam_w_mode:
        g = p.mul(s.weight_decay).add_(g)
    m.mul_(s.beta1).add_(g.mul(s.rest1))
    v.mul_(s.beta2).add_(g.mul(s.rest2).mul_(g))
    # Divided by tensors: torch multiplies by the reciprocal of a number on some devices.
    update = m.div(m.new_full((), s.correction1))
    denominator = arithmetic.sqrt(v.div(v.new_full((), s.correction2))).add_(s.eps)
    update.div_(denominator)
    if s.adam_w_mode:
        update.add_(p.mul(s.weight_decay))
    p.sub_(update.mul_(s.lr))
