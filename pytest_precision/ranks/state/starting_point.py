"""Put a process into the defined state from which every job starts."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from pytest_precision.ranks.state.accelerator import generator_states, set_generator_states


def reset(threads: int = 1, *, warn_only: bool = False) -> None:
    """Put this process into the defined state in which each function call begins.

    - torch, numpy and `random` are seeded with 0, on every rank alike;
    - torch has `threads` threads, one unless more are declared, so that no reduction depends on the
      number of cores;
    - only deterministic algorithms run; an operator without one raises an error, or with
      `warn_only` runs and warns;
    - memory from `torch.empty` is NaN (the largest value in integer dtypes), so that a read before
      the first write is noticed;
    - subnormal numbers are kept;
    - the default dtype is float32.
    """
    seed()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)


def seed() -> None:
    """Seed torch, numpy and `random` with 0."""
    if torch.accelerator.current_accelerator() is None:
        torch.default_generator.manual_seed(0)
    else:
        torch.manual_seed(0)  # it records a stack per kind of device: 0.2 ms per job
    np.random.seed(0)
    random.seed(0)


class TorchSettings(NamedTuple):
    """Torch's settings that `reset` changes, as they are at one moment; generators are not of them.

    Attributes:
        threads: number of torch's threads.
        deterministic: whether only deterministic algorithms run.
        warn_only: whether others only warn.
        fill: whether memory from `torch.empty` is filled.
        flushed: whether subnormal numbers are flushed.
        dtype: the default one.
    """

    threads: int
    deterministic: bool
    warn_only: bool
    fill: bool
    flushed: bool
    dtype: torch.dtype

    def restore(self) -> None:
        """Give this process these settings."""
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = self.fill  # type: ignore[attr-defined]
        torch.set_flush_denormal(self.flushed)
        torch.set_default_dtype(self.dtype)


def torch_settings() -> TorchSettings:
    """Return torch's present settings."""
    return TorchSettings(
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        sys.float_info.min / 2 == 0.0,  # the processor has this flag per thread
        torch.get_default_dtype(),
    )


@contextmanager
def borrowed() -> Iterator[None]:
    """Save this process's seeds, threads, dtype and determinism; restore them after the block."""
    generators = generator_states(), np.random.get_state(), random.getstate()
    settings = torch_settings()
    try:
        yield
    finally:
        set_generator_states(generators[0])
        np.random.set_state(generators[1])
        random.setstate(generators[2])
        settings.restore()
