"""Other threads compute digests of what the calling thread has copied, on its own stream.

The stream is a stand-in: each thread has a current one, as on a device, and what is queued on it is
done before a copy that the same stream makes. A copy on another stream reads what was there before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_precision._torch.dispatch import tensor_without_memory, without_torch_function
from pytest_precision.engine.observation import Span
from pytest_precision.trace.digests import digest
from pytest_precision.trace.lin8_sums import DigestedPart
from pytest_precision.trace.named_digests import XXH3
from pytest_precision.trace.writer import LARGE, TraceWriter


class _Current(threading.local):
    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []


CURRENT = _Current()


class OnDevice(torch.Tensor):
    """A tensor on a device with streams: its memory is read in the order of the current one."""

    memory: torch.Tensor
    __torch_function__ = without_torch_function()

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> Any:
        made = tensor_without_memory(cls, memory.shape, memory.dtype, torch.device("meta"))
        made.memory = memory
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return OnDevice(args[0].memory)
        assert func is torch.ops.aten._to_copy.default, func
        while CURRENT.queue:
            CURRENT.queue.pop(0)()
        return args[0].memory.clone()


@pytest.mark.parametrize("count", [1, 7])
def test_a_digest_is_of_what_the_callers_stream_has_written(tmp_path: Path, count: int) -> None:
    """A thread of the pool has another current stream, on which the copy would come too early."""
    memories = [torch.zeros(LARGE) for _ in range(count)]
    for memory in memories:
        CURRENT.queue.append(lambda memory=memory: memory.fill_(1.0))
    with TraceWriter(tmp_path, 0, digests=True, threads=2) as writer:
        parts = [DigestedPart(OnDevice(memory), (LARGE,), Span(0, LARGE)) for memory in memories]
        found = [*writer._all_digests(XXH3, parts)]
    assert found == [digest(torch.ones(LARGE))] * count
