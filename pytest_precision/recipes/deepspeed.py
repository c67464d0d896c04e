"""DeepSpeed: which parameters lie in ZeRO's partitions, and its engine without a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.errors import expected_but_got, named
from pytest_precision.recipes import expect_release
from pytest_precision.recorders.scripts.located import Locate, PieceFields

TESTED_RELEASE = "0.19"

Names = dict[Tensor, str]
Flat = Iterator[tuple[Tensor, list[PieceFields]]]
"""Each flat tensor with the pieces in it."""


def locate(engine: Any) -> Locate:
    """Return a function that tells the recorder which parameters DeepSpeed keeps in a tensor.

    Parameters of the model that ZeRO 3 has not gathered are not shown; their masters are.

    Raises:
        RuntimeError: the release is another one.
        TypeError: DeepSpeed keeps what it updates in a way that this recipe does not know.
    """
    expect_release("deepspeed", TESTED_RELEASE)
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    kind = type(engine.optimizer).__name__
    if kind not in OPTIMIZER_CLASSES and not isinstance(engine.optimizer, Optimizer):
        expected = "one of torch's optimizers, " + " or ".join(OPTIMIZER_CLASSES)
        raise TypeError(expected_but_got(expected, named("engine.optimizer", engine.optimizer)))
    pieces = dict(OPTIMIZER_CLASSES.get(kind, _no_pieces)(engine.optimizer, names))
    return lambda tensor: [] if _is_released(tensor) else pieces.get(tensor)


def _is_released(tensor: Any) -> bool:
    """Return whether ZeRO 3 has freed a parameter's values, so that only a shard is stored."""
    return hasattr(tensor, "ds_tensor") and not tensor.numel()


def _no_pieces(optimizer: Any, names: Names) -> Flat:
    """Yield nothing, since ZeRO 0 without masters updates the model's parameters themselves."""
    return iter(())


def _copies(optimizer: Any, names: Names) -> Flat:
    """Yield each fp32 master weight of ZeRO 0 with its parameter's name and shape."""
    for masters, group in zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True):
        for master, parameter in zip(masters, group, strict=True):
            yield master, [(names[parameter], tuple(parameter.shape), 0, parameter.numel())]


def _partitions(optimizer: Any, names: Names) -> Flat:
    """Yield this rank's fp32 partition of each ZeRO 1 or 2 group, with the parameters in it."""
    for number, partition in enumerate(optimizer.single_partition_of_fp32_groups):
        rank = dist.get_rank(optimizer.real_dp_process_group[number])
        position = rank * partition.numel()
        end = (rank + 1) * partition.numel()
        group = optimizer.round_robin_bit16_groups[number]
        pieces: list[PieceFields] = []
        for parameter, offset in zip(
            group, optimizer.round_robin_bit16_offsets[number], strict=True
        ):
            start, stop = max(position, offset), min(end, offset + parameter.numel())
            if start < stop:
                pieces.append((None, (), 0, start - position))
                pieces.append(
                    (names[parameter], tuple(parameter.shape), start - offset, stop - offset)
                )
                position = stop
        yield partition, [*pieces, (None, (), 0, end - position)]


def _shards(optimizer: Any, names: Names) -> Flat:
    """Yield this rank's fp32 partition of each ZeRO 3 group, with the parameters in it."""
    partitions = optimizer.fp32_partitioned_groups_flat
    for partition, group in zip(partitions, optimizer.fp16_groups, strict=True):
        pieces: list[PieceFields] = []
        for parameter in group:
            size = parameter.ds_tensor.ds_numel
            start = min(dist.get_rank(parameter.ds_process_group) * size, parameter.ds_numel)
            stop = min(start + size, parameter.ds_numel)
            pieces.append((names[parameter], tuple(parameter.ds_shape), start, stop))
            pieces.append((None, (), 0, size - (stop - start)))
        yield partition, pieces


OPTIMIZER_CLASSES = {
    "FP16_UnfusedOptimizer": _copies,
    "DeepSpeedZeroOptimizer": _partitions,
    "DeepSpeedZeroOptimizer_Stage3": _shards,
}
"""Name of the class of an optimizer of DeepSpeed's to what it holds."""


def on_cpu() -> None:
    """Make DeepSpeed use the existing process group, without compiling DeepSpeed's collectives."""
    import deepspeed

    expect_release("deepspeed", TESTED_RELEASE)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
