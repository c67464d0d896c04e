"""The accelerator of this process, if it has started: its generator, its memory, what is queued."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def started() -> Iterator[tuple[str, Any]]:
    """Yield the type of the accelerator and torch's module for it; nothing before it has started.

    A rank on the CPU of a machine with a GPU starts none, and neither does a question.
    """
    found = torch.accelerator.current_accelerator()
    if found is not None:
        module = torch.get_device_module(found)
        if module.is_initialized():
            yield found.type, module


def generator_states() -> dict[str, Tensor]:
    """Return the state of each of torch's generators, by the type of its device.

    Dropout on a device draws from the generator of the device, and not from that of the CPU.
    """
    own = {kind: module.get_rng_state() for kind, module in started()}
    return {"cpu": torch.get_rng_state()} | own


def set_generator_states(states: dict[str, Tensor]) -> None:
    """Have generators go on from what `generator_states` returned; others stay as they are."""
    torch.set_rng_state(states["cpu"])
    for kind, module in started():
        if kind in states:
            module.set_rng_state(states[kind])


def wait_for_device() -> None:
    """Wait for all that is queued on the device."""
    for _, module in started():
        module.synchronize()


def free_memory() -> float:
    """Release the device's memory that no tensor uses, since other processes may need it.

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
    """Return whether a CUDA graph is being captured, in which no tensor can be read.

    Builds without CUDA have no such function.
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
