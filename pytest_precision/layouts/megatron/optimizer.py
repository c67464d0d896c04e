"""Megatron-LM's distributed optimizer as a ready-made layout."""

from __future__ import annotations

from pytest_precision.engine.engine import Engine
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer
from pytest_precision.layouts.megatron.stored_model import (
    BUCKET_SIZE,
)
from pytest_precision.layouts.support import supports
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.base import Workload


@supports(
    {
        "fp32": ["fp32"],
        "bf16": ["bf16"],
        "fp16": ["fp16"],
        "quantized": ["bf16", "quantized"],
    },
    fused=["bf16", "quantized"],
)
def distributed_optimizer(
    workload: Workload,
    cell: Cell,
    *,
    bucket_size: int = BUCKET_SIZE,
    overlap_grad_reduce: bool = False,
    overlap_param_gather: bool = False,
    reuse_grad_buffer_for_param_gather: bool = False,
    main_grads_dtype: str = "fp32",
    main_params_dtype: str = "fp32",
    exp_avg_dtype: str = "fp32",
    exp_avg_sq_dtype: str = "fp32",
    store_param_remainders: bool = False,
) -> Engine:
    """Set up Megatron-LM's distributed optimizer on parameters stored as `cell.primary_weight`.

    Quantized parameters are made as Transformer Engine's `quantize_master_weights` makes them:
    masters are cast to bf16, amaxes are reduced over the ranks, each rank casts its own elements,
    and bytes are gathered. NVFP4 codes are gathered one per byte, since a shard may end between two
    codes of one byte. With `reuse_grad_buffer_for_param_gather`, bf16 is gathered, and every rank
    quantizes the whole parameter from that.

    Args:
        workload: what is trained.
        cell: the point of the matrix.
        bucket_size: number of elements at which a bucket takes no further parameter; by default
            the size of a matrix of `workloads.mlp`.
        overlap_grad_reduce: reduce a bucket in backward as soon as its gradients are complete.
        overlap_param_gather: gather a bucket when a module first reads it.
        reuse_grad_buffer_for_param_gather: gather MXFP8 parameters in bf16, in the gradients'
            memory.
        main_grads_dtype: dtype in which gradients are accumulated and reduced: fp32, bf16.
        main_params_dtype: dtype of the masters: fp32, fp16; `optim.FusedAdam` keeps the latter.
        exp_avg_dtype: dtype of the first moment: fp32, bf16, fp16, fp8; all but fp32 select
            `optim.FusedAdam`. What is stored in fp16 or fp8 has one scale per shard, so that its
            numbers depend on the world size, as Megatron-LM's do.
        exp_avg_sq_dtype: dtype of the second moment, with the same choices.
        store_param_remainders: let `optim.FusedAdam` update the shards of bf16 parameters where
            they are gathered, and keep 16 bits more of each master.

    Raises:
        ValueError: for a cell that it does not support, and for options that have no effect.
    """
    return DistributedOptimizer.of(
        workload,
        cell,
        bucket_size=bucket_size,
        overlap_grad_reduce=overlap_grad_reduce,
        overlap_param_gather=overlap_param_gather,
        reuse_grad_buffer_for_param_gather=reuse_grad_buffer_for_param_gather,
        main_grads_dtype=main_grads_dtype,
        main_params_dtype=main_params_dtype,
        exp_avg_dtype=exp_avg_dtype,
        exp_avg_sq_dtype=exp_avg_sq_dtype,
        store_param_remainders=store_param_remainders,
    )
