"""Ready-made layouts: how weights, gradients and optimizer state are stored, sharded and updated.

Each is a callable `(workload, cell) -> Engine`. Attributes are resolved on first use, so that
importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.layouts.compute import compute_in
    from pytest_precision.layouts.declarations import fresh_ranks, may_leave, pure, with_environment
    from pytest_precision.layouts.declarations import (
        uses_transformer_engine as uses_transformer_engine,
    )
    from pytest_precision.layouts.dtypes import resident
    from pytest_precision.layouts.megatron.experts import discrete_experts, grouped_experts
    from pytest_precision.layouts.megatron.optimizer import (
        distributed_optimizer as distributed_optimizer,
    )
    from pytest_precision.layouts.optimizer_layouts import (
        any_precision_adamw as any_precision_adamw,
    )
    from pytest_precision.layouts.optimizer_layouts import fused_adam
    from pytest_precision.layouts.replicated import adamw, autocast, ddp, master_adamw
    from pytest_precision.layouts.sharded import fsdp2
    from pytest_precision.layouts.support import supports
    from pytest_precision.layouts.transformer_engine.layouts import (
        te_blocks,
        te_experts,
        te_linears,
    )

__all__ = [
    "adamw",
    "any_precision_adamw",
    "autocast",
    "compute_in",
    "ddp",
    "discrete_experts",
    "distributed_optimizer",
    "fresh_ranks",
    "fsdp2",
    "fused_adam",
    "grouped_experts",
    "master_adamw",
    "may_leave",
    "pure",
    "resident",
    "supports",
    "te_blocks",
    "te_experts",
    "te_linears",
    "uses_transformer_engine",
    "with_environment",
]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "compute": ("compute_in",),
        "declarations": (
            "fresh_ranks",
            "may_leave",
            "pure",
            "uses_transformer_engine",
            "with_environment",
        ),
        "dtypes": ("resident",),
        "megatron.optimizer": ("distributed_optimizer",),
        "megatron.experts": ("discrete_experts", "grouped_experts"),
        "optimizer_layouts": ("any_precision_adamw", "fused_adam"),
        "replicated": ("adamw", "autocast", "ddp", "master_adamw"),
        "sharded": ("fsdp2",),
        "support": ("supports",),
        "transformer_engine.layouts": ("te_blocks", "te_experts", "te_linears"),
    },
    open_to_others=True,
)
