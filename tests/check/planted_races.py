"""Layouts that read what has not arrived: right among ranks that are equally fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps

import torch.distributed as dist

from pytest_precision import Cell, Engine, Workload
from pytest_precision.layouts import distributed_optimizer
from pytest_precision.layouts.megatron.buffers import Bucket
from pytest_precision.layouts.megatron.optimizer_engine import DistributedOptimizer

Wait = Callable[[Bucket], None]

MOSTLY = 0.004
"""Seconds after which a collective among equally fast ranks has ended."""


def reads_early(workload: Workload, cell: Cell, *, overlap: str) -> Engine:
    """Read the last bucket of every buffer when its collectives have mostly ended."""
    engine = distributed_optimizer(workload, cell, **{overlap: True})
    assert isinstance(engine, DistributedOptimizer)
    for buffer in engine.buffers:
        buffer.wait = _forgetting(buffer.wait, buffer.buckets[-1])  # type: ignore[method-assign]
    return engine


def _forgetting(wait: Wait, forgotten: Bucket) -> Wait:
    started: list[dist.Work] = []  # a work that nobody holds is waited for

    @wraps(wait)
    def forgets(bucket: Bucket) -> None:
        if bucket is forgotten:
            started.extend(bucket.works)
            bucket.works = []
            time.sleep(MOSTLY)
        wait(bucket)

    return forgets
