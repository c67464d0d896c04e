"""Bit-exact versions of optimizers that are not in torch, as `torch.optim.Optimizer`s.

Attributes are resolved on first use, so that importing this package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.optim.any_precision import AnyPrecisionAdamW as AnyPrecisionAdamW
    from pytest_precision.optim.fused_adam import FusedAdam as FusedAdam

__all__ = ["AnyPrecisionAdamW", "FusedAdam"]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "any_precision": ("AnyPrecisionAdamW",),
        "fused_adam": ("FusedAdam",),
    },
)
