"""The optimizer rules that a workload may declare for its weights, as plain data.

A rule has the options of torch's optimizer of that name; those that `Workload.groups` gives a group
come before them. The learning rates are those of the groups and of `Workload.scheduler`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdamW:
    """The rule of AdamW (Adam with decoupled weight decay): its betas, eps and weight decay.

    Attributes:
        betas: decay of the moments.
        eps: term added to the denominator, outside of the root.
        weight_decay: share of a weight that a step with the learning rate 1 would remove.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass(frozen=True)
class Adam:
    """The update rule of Adam with weight decay as L2 regularisation, added to the gradient.

    Attributes:
        betas: decay of the moments.
        eps: term added to the denominator, outside of the root.
        weight_decay: factor of the weights in the gradient.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class SGD:
    """The update rule of SGD with weight decay as L2 regularisation, added to the gradient.

    Attributes:
        momentum: share of the momentum buffer that a step keeps; 0 for no buffer.
        dampening: share of each gradient but the first that the buffer does not take.
        nesterov: whether a step follows the gradient and the buffer, not the buffer alone.
        weight_decay: factor of the weights in the gradient.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


OptimizerRule = AdamW | Adam | SGD
