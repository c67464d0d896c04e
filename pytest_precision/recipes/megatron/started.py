"""Set up Megatron-core in a process before a run, and release its resources after it.

These are its process groups and the configuration of a cell; a model and its process groups would
outlive their run.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.matrix.cell import Cell
from pytest_precision.ranks import te_stand_in
from pytest_precision.recipes import expect_release
from pytest_precision.recipes.megatron.flat_shards import TESTED_RELEASES

MEGATRON_VARIABLES = {
    # Without it, Transformer Engine makes discrete weights in place of a single one.
    "NVTE_GROUPED_LINEAR_SINGLE_PARAM": "1",
    # Without it, Megatron-core has no fused experts, which single grouped weights need.
    "NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
"""Variables that Transformer Engine and Megatron-core read when a model is built."""

FP8_RECIPES = {
    "fp8_delayed": "delayed",
    "fp8_current": "tensorwise",
    "fp8_block": "blockwise",
    "mxfp8": "mxfp8",
}
"""Precision of a cell to Megatron-core's name of its recipe."""

MEGATRON_SEED = 1234


def initialize(**sizes: Any) -> None:
    """Make new process groups of Megatron-core, and seed its random generators.

    A layout calls this first.

    Args:
        sizes: as `parallel_state.initialize_model_parallel` takes them.

    Raises:
        RuntimeError: the release is another one.
    """
    expect_release("megatron-core", *TESTED_RELEASES)
    os.environ.update(
        {name: os.environ.get(name, value) for name, value in MEGATRON_VARIABLES.items()}
    )
    parallel_state = import_module("megatron.core.parallel_state")
    parallel_state.destroy_model_parallel()  # of the cell before
    parallel_state.initialize_model_parallel(**{"create_gloo_process_groups": True, **sizes})
    _forget_reduction()
    random = import_module("megatron.core.tensor_parallel.random")
    random.model_parallel_cuda_manual_seed(torch.initial_seed() % 2**31 or MEGATRON_SEED)


def _forget_reduction() -> None:
    """Restore Megatron-core's reduce-scatter, which the one with fp32 accumulation has replaced."""
    buffers: Any = import_module("megatron.core.distributed.param_and_grad_buffer")
    chosen = buffers.reduce_scatter_with_fp32_accumulation
    if buffers.dist_reduce_scatter_func is chosen:
        buffers.dist_reduce_scatter_func = dist.reduce_scatter_tensor


def config(cell: Cell) -> dict[str, Any]:
    """Return the `TransformerConfig` arguments for a matrix cell's precision and weight storage.

    These are dtypes, the recipe, whether primary weights are quantized, and fused accumulation;
    nothing is dropped.
    """
    arguments: dict[str, Any] = {
        "params_dtype": torch.bfloat16,
        "bf16": True,
        "gradient_accumulation_fusion": cell.grad_accum_fusion,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if te_stand_in.stand_in_running():  # no other attention has arithmetic there
        enums = import_module("megatron.core.transformer.enums")
        arguments["attention_backend"] = enums.AttnBackend.unfused
    primary = cell.primary_weight == "quantized"
    if cell.precision == "nvfp4":
        return arguments | {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param": primary}
    if cell.precision in FP8_RECIPES:
        element = "e4m3" if cell.precision == "mxfp8" else "hybrid"
        recipe = FP8_RECIPES[cell.precision]
        return arguments | {"fp8": element, "fp8_recipe": recipe, "fp8_param": primary}
    return arguments


def wrapped(model: Any, cell: Cell, options: Mapping[str, Any]) -> Any:
    """Return a model in Megatron-core's DDP and `Float16Module`, with fp32 gradients by default."""
    quantized = cell.primary_weight == "quantized"
    defaults = {
        "use_distributed_optimizer": True,
        "grad_reduce_in_fp32": True,
        "fp8_param_gather": quantized and model.config.fp8 is not None,
        "fp4_param_gather": quantized and model.config.fp4 is not None,
        # Megatron-core gathers quantized MXFP8 weights in no other way.
        "reuse_grad_buf_for_mxfp8_param_ag": quantized and cell.precision == "mxfp8",
    }
    distributed = import_module("megatron.core.distributed")
    module = import_module("megatron.core.transformer.module")
    return distributed.DistributedDataParallel(
        model.config,
        distributed.DistributedDataParallelConfig(**defaults | dict(options)),
        module.Float16Module(model.config, model),
    )


def optimizer_of(ddp: Any, options: Mapping[str, Any]) -> Any:
    """Return Megatron-core's optimizer of a wrapped model, with DDP's configuration."""
    ddp_config = ddp.ddp_config
    defaults = {
        "lr": 1e-3,
        "clip_grad": 0.0,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "use_distributed_optimizer": ddp_config.use_distributed_optimizer,
        "overlap_param_gather": ddp_config.overlap_param_gather,
        "fp8_recipe": ddp.config.fp8_recipe if ddp.config.fp8 else None,
        "reuse_grad_buf_for_mxfp8_param_ag": ddp_config.reuse_grad_buf_for_mxfp8_param_ag,
    }
    optimizer = import_module("megatron.core.optimizer")
    config = optimizer.OptimizerConfig(**defaults | dict(options))
    return optimizer.get_megatron_optimizer(config, [ddp])


def end_groups_with(engine: Any) -> None:
    """Destroy Megatron-core's process groups when `engine` is deleted, unless newer ones exist.

    Nothing refers to them then, so that the next job ends them.
    """
    parallel_state = import_module("megatron.core.parallel_state")
    weakref.finalize(engine, _end, parallel_state, parallel_state.get_data_parallel_group())


def _end(parallel_state: Any, group: Any) -> None:
    if parallel_state.is_initialized() and parallel_state.get_data_parallel_group() is group:
        parallel_state.destroy_model_parallel()


def forget_graphs(model: nn.Module) -> None:
    """Detach a finished step's tensors, kept by MoE token dispatchers, from the step's graph.

    The graph holds operations of the model, which holds the dispatchers: no collector sees this
    cycle.
    """
    for module in model.modules():
        dispatcher = getattr(module, "token_dispatcher", None)
        for name, attribute in [*vars(dispatcher).items()] if dispatcher is not None else ():
            if isinstance(attribute, Tensor) and attribute.grad_fn is not None:
                setattr(dispatcher, name, attribute.detach())
