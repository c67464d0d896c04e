"""Ready-made layouts: how weights, gradients and optimizer state are stored, sharded and updated.

Each is a callable `(workload, cell) -> Engine`. Attributes are resolved on first use, so that
importing this package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_precision.layouts.distributed import (
        distributed_optimizer as distributed_optimizer,
    )
    from pytest_precision.layouts.environment import with_environment as with_environment
    from pytest_precision.layouts.experts import discrete_experts as discrete_experts
    from pytest_precision.layouts.experts import grouped_experts as grouped_experts
    from pytest_precision.layouts.optimizers import any_precision_adamw as any_precision_adamw
    from pytest_precision.layouts.optimizers import fused_adam as fused_adam
    from pytest_precision.layouts.replicated import adamw as adamw
    from pytest_precision.layouts.replicated import ddp as ddp
    from pytest_precision.layouts.replicated import master_adamw as master_adamw
    from pytest_precision.layouts.sharded import fsdp2 as fsdp2

_MODULES = {
    "adamw": "replicated",
    "any_precision_adamw": "optimizers",
    "ddp": "replicated",
    "discrete_experts": "experts",
    "distributed_optimizer": "distributed",
    "fsdp2": "sharded",
    "fused_adam": "optimizers",
    "grouped_experts": "experts",
    "master_adamw": "replicated",
    "with_environment": "environment",
}

__all__ = [
    "adamw",
    "any_precision_adamw",
    "ddp",
    "discrete_experts",
    "distributed_optimizer",
    "fsdp2",
    "fused_adam",
    "grouped_experts",
    "master_adamw",
    "with_environment",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"expected a layout of {', '.join(__all__)} but got {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
