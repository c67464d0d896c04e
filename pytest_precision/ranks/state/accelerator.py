"""The accelerator of this process: its random generator, its memory and its queued work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def started() -> Iterator[tuple[str, Any]]:
    """Yield the accelerator's type and torch module, if this process has initialized it.

    A rank on the CPU of a machine with a GPU starts none, and neither does a question.
    """
    device = torch.accelerator.current_accelerator()
    if device is not None:
        module = torch.get_device_module(device)
        if module.is_initialized():
            yield device.type, module


def generator_states() -> dict[str, Tensor]:
    """Return the states of torch's random generators, by device type.

    Dropout on a device draws from the generator of the device, and not from that of the CPU.
    """
    states = {kind: module.get_rng_state() for kind, module in started()}
    return {"cpu": torch.get_rng_state()} | states


def set_generator_states(states: dict[str, Tensor]) -> None:
    """Restore random generator states by device type; other generators stay unchanged."""
    torch.set_rng_state(states["cpu"])
    for kind, module in started():
        if kind in states:
            module.set_rng_state(states[kind])


def wait_for_device() -> None:
    """Wait until the accelerator has done all work that is queued on it."""
    for _, module in started():
        module.synchronize()


def free_memory() -> float:
    """Release cached device memory, which other processes may need.

    Returns:
        The share of the device's memory that is free now; 1.0 without a device.
    """
    for _, module in started():
        gc.collect()  # engines and their hooks form reference cycles
        module.empty_cache()
        free, total = module.mem_get_info()
        return float(free / total)
    return 1.0


def capturing() -> bool:
    """Return whether a CUDA graph is being captured, so that tensors cannot be read.

    Builds without CUDA have no such function.
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
