"""Private names of torch on tensors: subclasses, schemas, modes and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


def tree_leaves(tree: Any) -> list[Any]:
    """List the leaves of nested lists, tuples and dicts, by a private function of torch."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to the leaves of nested containers, by a private function of torch."""
    from torch.utils import _pytree

    return _pytree.tree_map(function, tree)


def after_operations(call: Callable[[str, tuple[Any, ...], Any], None]) -> Any:
    """Return a context that calls `call(name, arguments, result)` after each torch operation.

    No public mode sees the operations of a backward.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            call(func.overloadpacket.__name__, args, result)
            return result

    return Operations()  # type: ignore[no-untyped-call]


def without_torch_function() -> Any:
    """Return the `__torch_function__` for a class that overrides `__torch_dispatch__` alone.

    torch's own tensor subclasses use it; no public name does the same.
    """
    return torch._C._disabled_torch_function_impl


def tensor_of_class(cls: type[Tensor], values: Tensor) -> Any:
    """Make a tensor of a subclass that shares memory with `values`.

    `values.as_subclass(cls)` would call the subclass's own `__torch_dispatch__`.
    """
    return torch.Tensor._make_subclass(cls, values)


def tensor_without_memory(
    cls: type[Tensor], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> Any:
    """Make a tensor of a subclass that has shape, dtype and device but no storage, like DTensor."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)


def moved_by_its_class(tensor: Tensor, device: torch.device) -> Any:
    """Copy a tensor to `device` by the `__torch_dispatch__` of its class.

    `Tensor.to` would not ask it where the device is, for torch, the one that the tensor is on.
    """
    move = type(tensor).__torch_dispatch__
    return move(torch.ops.aten._to_copy.default, (type(tensor),), (tensor,), {"device": device})


@cache  # a schema takes longer to read than many operators to compute
def writes(func: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of each argument that an operator writes to, by its schema.

    No public name of torch has the schema of an operator.
    """
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[object]:
    """Yield those of a call's arguments that the operator writes to."""
    for place, name in writes(func):
        if name in kwargs:
            yield kwargs[name]
        elif place < len(args):
            yield args[place]


@cache
def returns_view(func: Any) -> bool:
    """Return whether an operator's schema says that a result shares memory with an argument."""
    kinds = (returned.alias_info for returned in func._schema.returns)
    return any(kind is not None and not kind.is_write for kind in kinds)


def memory_on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor in CPU memory: itself if it is there, even as a simulated `cuda` tensor.

    Over the stand-in for Transformer Engine, `device` is `cuda`, and `Tensor.cpu` copies it. The
    class that torch's derives from has no public name, and the stand-in does not patch it.
    """
    return torch._C.TensorBase.cpu(tensor)


def version(tensor: Tensor) -> int:
    """Return autograd's version counter of `tensor`, which every write to it increments."""
    return tensor._version


def in_transform() -> bool:
    """Return whether a `torch.func` transform is active, so that values cannot be read.

    No public function says so.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def without_torch_functions() -> Any:
    """Return a context in which no subclass's `__torch_function__` is called."""
    return torch._C.DisableTorchFunctionSubclass()


def without_functions_seen() -> Any:
    """Return a context in which torch functions bypass every mode and every tensor subclass."""
    return torch._C.DisableTorchFunction()


def map_devices(mapped: Callable[[Any], Any]) -> None:
    """Make `with torch.device(device)` and new wrapper-subclass tensors use `mapped(device)`.

    It does so for the rest of the process. A wrapper subclass is one without storage; a device
    context is a `with torch.device(...)` or `torch.set_default_device`.
    """
    from torch.utils import _device

    make = Tensor._make_wrapper_subclass
    enter = _device.DeviceContext.__init__

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        return make(cls, *args, **kwargs)

    def entered(self: Any, device: Any) -> None:
        enter(self, mapped(torch.device(device)))

    setattr(Tensor, "_make_wrapper_subclass", staticmethod(made))  # noqa: B010 (stubs lack it)
    setattr(_device.DeviceContext, "__init__", entered)  # noqa: B010


def start_cuda_at_once() -> None:
    """Make `torch.cuda` run at once what it would delay until CUDA is initialized.

    Without a GPU, that never happens.
    """
    for holder in (torch.cuda, torch.cuda.random):
        for name, value in {
            "_lazy_init": lambda: None,
            "_lazy_call": lambda call, **_: call(),
        }.items():
            setattr(holder, name, value)


CYCLES_PER_SECOND = 1_500_000_000
"""Cycles of a GPU, about; torch counts a sleep on a device in them."""


def sleep_on_device(module: Any, seconds: float) -> None:
    """Make the current stream of a device wait for about `seconds`, by a kernel of torch."""
    module._sleep(int(seconds * CYCLES_PER_SECOND))


def in_bad_fork() -> bool:
    """Return whether this process was forked after CUDA had started, and cannot use CUDA.

    torch has no public name for it; the error of the first use of CUDA says the same.
    """
    return bool(torch.cuda._is_in_bad_fork())


def is_on_cpu(tensor: Tensor) -> bool:
    """Return whether a tensor lies in CPU memory, even if it is a simulated `cuda` tensor.

    See `memory_on_cpu`.
    """
    base: Any = torch._C.TensorBase
    return bool(base.is_cpu.__get__(tensor))


EXACT_TERMS = 2048
"""Products of a byte and a number of 7 bits whose sum, at most 2^24, is exact in fp32."""


def _multiplies_int8(rows: Tensor) -> bool:
    if rows.is_cpu:
        mkldnn: Any = torch.backends.mkldnn
        return bool(mkldnn.is_available())
    return rows.is_cuda and rows.shape[1] % 8 == 0 and len(rows) > 16


def int8_products(rows: Tensor, keys: Tensor) -> Tensor:
    """Return the matrix product of two int8 matrices as int32, exact for `keys` of 7 bits.

    torch has a product of int8 under a private name only. Where it cannot take these sizes, or has
    no fast code for the processor, fp32 serves, in parts whose sums are exact in any order.
    """
    depth = rows.shape[1]
    if _multiplies_int8(rows):
        return torch._int_mm(rows, keys.contiguous())
    parts = []
    with torch.autocast(rows.device.type, enabled=False):
        for start in range(0, depth, EXACT_TERMS):
            span = slice(start, start + EXACT_TERMS)
            parts.append((rows[:, span].float() @ keys[span].float()).to(torch.int32))
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.int32)


def argument_names(operator: str) -> tuple[str, ...]:
    """Return the names of an operator's arguments by its schema; none if torch has no such.

    Args:
        operator: as `aten.mul.Tensor`.
    """
    overload: Any = torch.ops
    for part in operator.split("."):
        overload = getattr(overload, part, None)
    schema = getattr(overload, "_schema", None)
    return () if schema is None else tuple(argument.name for argument in schema.arguments)
