"""Optimizers that the field uses and torch lacks: ordinary `torch.optim.Optimizer`s, bit-exact.

Attributes are resolved on first use, so that importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_precision.optim.any_precision import AnyPrecisionAdamW as AnyPrecisionAdamW
    from pytest_precision.optim.fused_adam import FusedAdam as FusedAdam

_MODULES = {"AnyPrecisionAdamW": "any_precision", "FusedAdam": "fused_adam"}

__all__ = ["AnyPrecisionAdamW", "FusedAdam"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"expected an optimizer of {', '.join(__all__)} but got {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
