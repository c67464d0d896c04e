"""Released: what would keep a model of Megatron-core, and its process groups, alive after its run.

Each group has threads of gloo that poll for as long as it stands.
"""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import Any

from torch import Tensor, nn


def end_groups_with(engine: Any) -> None:
    """Have Megatron-core forget its process groups when `engine` ends, unless they were made anew.

    Nothing refers to them then, so that the next job ends them.
    """
    parallel_state = import_module("megatron.core.parallel_state")
    weakref.finalize(engine, _end, parallel_state, parallel_state.get_data_parallel_group())


def _end(parallel_state: Any, group: Any) -> None:
    if parallel_state.is_initialized() and parallel_state.get_data_parallel_group() is group:
        parallel_state.destroy_model_parallel()


def forget_graphs(model: nn.Module) -> None:
    """Have dispatchers keep the values of the step that is over without its graph.

    The graph holds operations of the model, which holds the dispatchers: no collector sees this
    cycle.
    """
    for module in model.modules():
        dispatcher = getattr(module, "token_dispatcher", None)
        for name, held in [*vars(dispatcher).items()] if dispatcher is not None else ():
            if isinstance(held, Tensor) and held.grad_fn is not None:
                setattr(dispatcher, name, held.detach())
