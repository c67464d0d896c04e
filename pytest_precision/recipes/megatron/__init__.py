"""Megatron-core: its flat shards for a recorder, its CUDA calls on a CPU, and an engine of it.

locate, on_cpu                 for a script with DDP, the distributed optimizer, tensor parallelism
initialize, config, MegatronEngine, Tokens, weights_by_name, experts_by_token
                               for a layout over Transformer Engine, on a CPU too
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.recipes.megatron.chosen_experts import experts_by_token
    from pytest_precision.recipes.megatron.core_engine import MegatronEngine
    from pytest_precision.recipes.megatron.cuda_calls import on_cpu
    from pytest_precision.recipes.megatron.flat_shards import locate
    from pytest_precision.recipes.megatron.placement import weights_by_name
    from pytest_precision.recipes.megatron.started import config, initialize
    from pytest_precision.recipes.megatron.tokens import Tokens

__all__ = [
    "MegatronEngine",
    "Tokens",
    "config",
    "experts_by_token",
    "initialize",
    "locate",
    "on_cpu",
    "weights_by_name",
]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "core_engine": ("MegatronEngine",),
        "cuda_calls": ("on_cpu",),
        "flat_shards": ("locate",),
        "placement": ("weights_by_name",),
        "chosen_experts": ("experts_by_token",),
        "started": ("config", "initialize"),
        "tokens": ("Tokens",),
    },
)
