"""A device that torch takes for an accelerator on a machine without one: generator and memory.

torch lets a package register such a module, as makers of accelerators do. It lasts as long as the
process, so tests use it in a process of their own.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch

NAME = "fake"


class _Stream:
    """A stream of the device, on which everything is done at once."""

    def synchronize(self) -> None:
        pass


class FakeDevice(types.ModuleType):
    """What torch and this package ask of the module of a device.

    Attributes:
        generator: draws what a kernel on the device would.
        total, held, cached: bytes of its memory, those that tensors hold and those that only the
            allocator keeps.
        synchronized: how often somebody has waited for it.
        streams: the last is the current one.
    """

    def __init__(self) -> None:
        super().__init__(NAME)
        self.generator = torch.Generator()
        self.total, self.held, self.cached = 100, 0, 0
        self.synchronized = 0
        self.initialized = True
        self.streams = [_Stream()]

    def is_initialized(self) -> bool:
        return self.initialized

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.generator.set_state(state)

    def empty_cache(self) -> None:
        self.cached = 0

    def mem_get_info(self) -> tuple[int, int]:
        return self.total - self.held - self.cached, self.total

    def synchronize(self) -> None:
        self.synchronized += 1

    def current_stream(self) -> Any:
        return self.streams[-1]

    def stream(self, stream: Any) -> Any:
        return contextlib.nullcontext()


def installed() -> FakeDevice:
    """Register the device, and return its module."""
    module = FakeDevice()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    # A barrier asks this for the device that it waits for; the half in C++ is not registered.
    torch._C._get_accelerator = lambda *_: torch.device("cpu")
    return module


def dropout(device: FakeDevice, share: float) -> Callable[..., None]:
    """Return a forward hook that drops a share of a module's result, drawn on the device."""

    def hook(module: torch.nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
        kept = torch.rand(result.shape, generator=device.generator) >= share
        return result * kept

    return hook
