"""Checkpoints of Megatron-core's own format, `torch_dist`: of all state, or of weights alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from pytest_precision.recipes.megatron.core_engine import MegatronEngine

UNSAFE = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
"""Variable without which Transformer Engine unpickles no checkpoint of delayed scaling."""

RESHARDABLE = {"distrib_optim_sharding_type": "dp_reshardable"}
"""The format of the optimizer's state that any number of data-parallel ranks can load, and the only
one that takes single grouped weights."""


def save(engine: MegatronEngine, folder: Path) -> None:
    """Write a `torch_dist` checkpoint of weights, masters, moments and random generators."""
    folder.mkdir(exist_ok=True)
    dist.barrier()
    model = _model(engine)
    state = {"model": model, "optimizer": _optimizer(engine, model, is_loading=False)}
    _serialization().save(state, str(folder))
    torch.save(engine.state_beside_weights(), folder / f"rank{engine.rank}.pt")


def load(engine: MegatronEngine, folder: Path) -> None:
    """Load weights and optimizer state from a checkpoint that any number of ranks has written."""
    model = _model(engine)
    state = {"model": model, "optimizer": _optimizer(engine, model, is_loading=True)}
    loaded = _serialization().load(state, str(folder))
    with _pickled_numbers():
        engine.model.load_state_dict(loaded["model"])
    engine.updates.load_state_dict(loaded["optimizer"])
    file = folder / f"rank{engine.rank}.pt"
    beside = torch.load(file if file.exists() else folder / "rank0.pt")
    engine.load_state_beside_weights({"model": {}, **beside})


def save_weights(engine: MegatronEngine, folder: Path) -> None:
    """Write a `torch_dist` checkpoint of the weights, without optimizer state."""
    folder.mkdir(exist_ok=True)
    dist.barrier()
    _serialization().save({"model": _model(engine)}, str(folder))


def load_weights(engine: MegatronEngine, folder: Path) -> None:
    """Load weights without optimizer state, and reset the master weights to them."""
    loaded = _serialization().load({"model": _model(engine)}, str(folder))
    with _pickled_numbers():
        engine.model.load_state_dict(dict(loaded["model"]))
    engine.updates.reload_model_params(state_dict=loaded)


@contextmanager
def _pickled_numbers() -> Iterator[None]:
    """Allow Transformer Engine to unpickle delayed scaling state during the block."""
    before = os.environ.get(UNSAFE)
    os.environ[UNSAFE] = "1" if before is None else before
    try:
        yield
    finally:
        if before is None:
            del os.environ[UNSAFE]


def _model(engine: MegatronEngine) -> Any:
    return engine.model.sharded_state_dict(metadata=dict(RESHARDABLE))  # type: ignore[operator]


def _optimizer(engine: MegatronEngine, model: Any, *, is_loading: bool) -> Any:
    return engine.updates.sharded_state_dict(
        model, is_loading=is_loading, metadata=dict(RESHARDABLE)
    )


def _serialization() -> Any:
    return import_module("megatron.core.dist_checkpointing")
