"""Tensors on a device whose memory is counted, on a machine without one.

Each is a wrapper around a tensor on the host. Operations run there, and what they make on the
device is counted as long as it lives. As on a device, an operation takes no tensor of the host but
a number, and a copy to the host is made by name only.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_precision._torch.dispatch import tensor_without_memory, without_torch_function

DEVICE = torch.device("meta")
"""What the tensors say: of all devices without memory on the host, torch asks this for nothing."""


class DeviceMemory:
    """Counts bytes, and what the host asks of the device.

    Attributes:
        live, peak: bytes now, and the most there were.
        waits: how often the host has waited for values.
        copied: bytes of these values.
    """

    def __init__(self) -> None:
        self.live = self.peak = 0
        self.waits = self.copied = 0
        self._holders: Counter[int] = Counter()

    def take(self, tensor: Tensor) -> None:
        """Count the storage of a tensor, once for all tensors that hold it."""
        storage = tensor.untyped_storage()
        key, nbytes = storage.data_ptr(), storage.nbytes()
        if not self._holders[key]:
            self.live += nbytes
            self.peak = max(self.peak, self.live)
        self._holders[key] += 1
        weakref.finalize(tensor, self._drop, key, nbytes)

    def hand_over(self, nbytes: int) -> None:
        """Count a copy to the host, which waits for all that was computed before."""
        self.waits += 1
        self.copied += nbytes

    def _drop(self, key: int, nbytes: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            self.live -= nbytes


MEMORY = DeviceMemory()


class OnDevice(Tensor):
    """A tensor in the memory of the device."""

    memory: Tensor
    __torch_function__ = without_torch_function()

    @staticmethod
    def __new__(cls, memory: Tensor) -> Any:
        made = tensor_without_memory(cls, memory.shape, memory.dtype, DEVICE)
        made.memory = memory
        MEMORY.take(memory)
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, dict(kwargs or {})
        to = kwargs.get("device")
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        host = [one for one in given if not isinstance(one, OnDevice)]
        if name != "copy_" and any(one.dim() for one in host):
            raise RuntimeError(f"expected all tensors of {name} to be on the device")
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        inside = pytree.tree_map_only(OnDevice, lambda one: one.memory, (args, kwargs))
        made = func(*inside[0], **inside[1])
        if name == "_local_scalar_dense" or (name == "copy_" and not isinstance(args[0], OnDevice)):
            MEMORY.hand_over(args[-1].memory.nbytes)
        if to is not None and to.type == "cpu":
            MEMORY.hand_over(made.nbytes)
            return made.clone() if any(made is one for one in pytree.tree_leaves(inside)) else made
        written = args[0] if name.endswith("_") and not name.startswith("_foreach") else None
        if written is not None:
            return written
        return pytree.tree_map_only(Tensor, _wrapped, made)


class BroughtBack(TorchDispatchMode):
    """Has what is made on the device, or copied to it from the host, be there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == DEVICE and not any(isinstance(one, OnDevice) for one in args):
            return OnDevice(func(*args, **{**kwargs, "device": torch.device("cpu")}))
        return func(*args, **kwargs)


def _wrapped(tensor: Tensor) -> OnDevice:
    return OnDevice(tensor)


def more(call: Callable[[], object]) -> int:
    """Return how many bytes of the device a call holds at most beyond what was there."""
    before = MEMORY.peak = MEMORY.live
    kept = call()
    most = MEMORY.peak - before
    del kept
    return most
