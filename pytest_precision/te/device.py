"""Patches of torch that make CPU tensors report the device `cuda` until the process ends.

Transformer Engine makes its tensors on `cuda` and asks them where they are. So a tensor says `cuda`
unless it was made on, or moved to, `cpu` by name, which `marks` notes. All memory is the CPU's.
What is patched cannot be put back, since tensors that say `cuda` would live on: this belongs in a
process that does nothing else.

A device of its own would need no patch of tensors, and torch has no room for it: a backend cannot
be named `cuda` (`rename_privateuse1_backend` refuses the name), and autograd asks for a guard of
the device and for an accelerator, which are compiled in. `docs/limitations.md` has what was tried.

The arithmetic of this package chooses its algorithms by device, as that of a square root, so within
`plain()` tensors say what they are.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.dispatch import (
    map_devices,
    moved_by_its_class,
    without_torch_functions,
)
from pytest_precision.te import marks

FACTORIES = (
    *("arange", "as_tensor", "asarray", "empty", "empty_like", "empty_strided", "eye"),
    *("from_file", "full", "full_like", "linspace", "logspace", "normal", "ones", "ones_like"),
    *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"),
    *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
NEW_METHODS = (
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
)

KEEP_WHAT_THEY_FIND = (
    "torch._dynamo",
    "torch._inductor.runtime.triton_compat",
    "torch.distributed._shard.sharded_tensor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.checkpoint",
)
"""Modules to import before torch is patched, since they keep what they find at import.

They keep tables of torch's functions, or whether Triton is installed.
"""

CPU = torch.device("cpu")
HERE = torch.device("cuda", 0)


class _State(threading.local):
    plain = False


_state = _State()
_device = torch.device
_clone = Tensor.clone


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Make tensors of this thread report their real device within a `with` block."""
    before = _state.plain
    _state.plain = True
    try:
        yield
    finally:
        _state.plain = before


def real(device: Any) -> Any:
    """Return the CPU for a `cuda` device or a GPU's number, and other devices unchanged."""
    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int):
        return CPU
    if isinstance(device, str):
        return CPU if device.startswith("cuda") else device
    return CPU if isinstance(device, _device) and device.type == "cuda" else device


def enter() -> None:
    """Patch torch so that tensors made for `cuda` live on the CPU and still report `cuda`."""
    for module in KEEP_WHAT_THEY_FIND:
        import_module(module)
    for name in FACTORIES:
        setattr(torch, name, _made_where(getattr(torch, name)))
    for name in NEW_METHODS:
        setattr(Tensor, name, _made_where(getattr(Tensor, name)))
    _patch_tensors()
    map_devices(real)
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign]
    torch.load = _loading(torch.load)
    torch.UntypedStorage.__new__ = _storage_where(torch.UntypedStorage.__new__)  # type: ignore[method-assign]
    # A device pickles by the name of its class, which is about to be another one.
    copyreg.pickle(_device, lambda device: (_named_device, (str(device),)))
    torch.device = _Device  # type: ignore[misc]
    torch.Generator = _Generator  # type: ignore[misc]


def _patch_tensors() -> None:
    where = Tensor.device.__get__

    def device_of(tensor: Tensor) -> torch.device:
        if type(tensor) in marks.PLAIN:  # asked so often that it should cost less than a kernel
            device: torch.device = where(tensor)
            marked = _state.plain or device != CPU or marks.is_marked(tensor)
            return device if marked else HERE
        # The getter would hand a subclass the name `torch.Tensor.device`, which is this property.
        with without_torch_functions():
            device = where(tensor)
        return HERE if device.type == "cpu" and _says_cuda(tensor) else device

    replaced = {
        "device": property(device_of),
        "is_cuda": property(lambda tensor: device_of(tensor).type == "cuda"),
        "is_cpu": property(lambda tensor: device_of(tensor).type == "cpu"),
        "get_device": lambda tensor: 0 if device_of(tensor).type == "cuda" else -1,
        "to": _moving(Tensor.to),
        "cuda": lambda tensor, *_, **__: tensor.to(HERE),
        "cpu": lambda tensor, *_, **__: tensor.to(CPU),
        "pin_memory": lambda tensor, *_: tensor,
        "is_pinned": lambda tensor, *_: False,
        "record_stream": lambda tensor, *_: None,
        "type": _naming(Tensor.type),
    }
    for name, value in replaced.items():
        setattr(Tensor, name, value)


def _says_cuda(tensor: Tensor) -> bool:
    # Transformer Engine's own tensors are moved by its own code, which also runs within `plain()`.
    shows_real_device = _state.plain and type(tensor) in marks.PLAIN
    return not shows_real_device and not marks.is_marked(tensor)


def _marked(tensor: Any, device: Any) -> Any:
    """Return a tensor, marked to report `cpu` if the caller asked for that device by name."""
    named = isinstance(device, (str, _device)) and _device(device).type == "cpu"
    if named and isinstance(tensor, Tensor) and not _state.plain:
        marks.mark(tensor)
    return tensor


def _copied(tensor: Tensor, device: Any) -> Any:
    """Return a copy of a tensor, by the code of its class if that is Transformer Engine's."""
    if type(tensor) in marks.PLAIN or not hasattr(tensor, "get_metadata"):
        return _clone(tensor)
    return moved_by_its_class(tensor, _device(device))


def _made_where(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a tensor factory such as `torch.empty` to allocate on the CPU when asked for `cuda`."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if _state.plain and (device is None or device == CPU):
            return function(*args, **kwargs)  # nothing is marked there
        if device is not None:
            kwargs["device"] = real(device)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        source: Any = args[0] if args else None
        tensor = function(*args, **kwargs)
        if device is None:
            return (
                _marked(tensor, CPU) if tensor is not source and marks.passes_on(source) else tensor
            )
        if tensor is source and _says_cuda(tensor) == (_type(device) == "cuda"):
            return tensor
        return _marked(_copied(tensor, device) if tensor is source else tensor, device)

    return make


def _moving(to: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Tensor.to` to copy between the CPU and the fake GPU, whose memory is the CPU's too."""

    @functools.wraps(to)
    def move(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and len(args) == 1 and type(args[0]) is torch.dtype:
            moved = to(tensor, *args)
            return _marked(moved, CPU) if moved is not tensor and marks.passes_on(tensor) else moved
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = real(device)
        elif args and _names_device(args[0]):
            device = args[0]
            args = (real(device), *args[1:])
        elif args and isinstance(args[0], Tensor):
            device = args[0].device
        moved = to(tensor, *args, **kwargs)
        if device is None:
            return _marked(moved, CPU) if moved is not tensor and marks.passes_on(tensor) else moved
        if _state.plain:
            return moved
        leaves = _says_cuda(tensor) != (_type(device) == "cuda")
        return _marked(_copied(moved, device) if leaves and moved is tensor else moved, device)

    return move


def _naming(name_or_cast: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Tensor.type` to return a name with `cuda` for tensors that report `cuda`."""

    @functools.wraps(name_or_cast)
    def type_of(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return name_or_cast(tensor, *args, **kwargs)
        with without_torch_functions():  # a subclass would be handed this function
            named: str = name_or_cast(tensor)
        return named.replace("torch.", "torch.cuda.") if tensor.is_cuda else named

    return type_of


def _names_device(value: Any) -> bool:
    return isinstance(value, (str, _device)) or type(value) is int


def _type(device: Any) -> str:
    return "cuda" if isinstance(device, int) else _device(device).type


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, real(map_location), *args, **kwargs)

    return loaded


def _storage_where(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `UntypedStorage.__new__`, for `fully_shard`, to put `cuda` storages on the CPU."""

    def made(cls: type, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = real(kwargs["device"])
        return make(cls, *args, **kwargs)

    return made


def _named_device(text: str) -> torch.device:
    return _device(text)


class _Stands(type):
    """A metaclass for replaced classes: `isinstance` and `issubclass` test the original class."""

    stands_for: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.stands_for)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.stands_for)


class _Device(metaclass=_Stands):
    """A replacement of `torch.device` that accepts a GPU's number on a machine without GPUs."""

    stands_for = _device

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is int:
            return _device("cuda", args[0])
        return _device(*args, **kwargs)


class _Generator(metaclass=_Stands):
    """A replacement of `torch.Generator` that makes the CPU's generator when asked for `cuda`."""

    stands_for = torch.Generator

    def __new__(cls, device: Any = "cpu") -> Any:
        return cls.stands_for(device=real(device))
