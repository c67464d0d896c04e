"""Private names of torch for hooks on running operations: operators, memory and autograd nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import tree_leaves

_Result = TypeVar("_Result")

TRANSFERS = frozenset({"send", "recv_", "recv_any_source_"})
"""Names of the operators of c10d between two ranks."""


def around_operations(call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    """Return a context in which `call(operator, args, kwargs)` replaces each torch operation.

    Operations of tensor subclasses that have a dispatch of their own are left to it, and those that
    it makes are given to `call`. Compiled functions stay compiled.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    class Around(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if FakeTensor in types:  # their own mode is below this one, and has to see it
                return func(*args, **(kwargs or {}))
            if not all(map(has_own_memory, types)):
                return NotImplemented
            return call(func, args, kwargs or {})

    return Around()  # type: ignore[no-untyped-call]


@contextmanager
def around_calls(holder: Any, name: str, call: Callable[..., Any]) -> Iterator[None]:
    """Replace a function during the block, so that each call of it runs `call` instead.

    `call` gets the original function and the arguments.
    """
    original = getattr(holder, name)

    @wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    setattr(holder, name, wrapper)
    try:
        yield
    finally:
        setattr(holder, name, original)


@contextmanager
def after_applies(call: Callable[[type, Any, str, int], None]) -> Iterator[None]:
    """Call `call(function, results, file, line)` after each autograd function during the block.

    File and line are those of its caller. `apply` is a method of the class, which no public name
    lets others watch; what is compiled is traced as it is.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        results = original.__func__(cls, *args, **kwargs)
        if not torch.compiler.is_compiling():
            caller = sys._getframe(1)
            call(cls, results, caller.f_code.co_filename, caller.f_lineno)
        return results

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextmanager
def after_permutations(call: Callable[[Tensor, Any], None]) -> Iterator[None]:
    """Call `call(order, owner)` after each `torch.randperm` during the block.

    The owner is the object whose method has called it, or None. What is compiled is traced.
    """

    def permuted(original: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        order = original(*args, **kwargs)
        if not torch.compiler.is_compiling():
            call(order, sys._getframe(2).f_locals.get("self"))
        return order

    with around_calls(torch, "randperm", permuted):
        yield


def _called_result(function: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> _Result:
    """Return what a function returns: the one function that the compiler is told to leave alone.

    To tell it so of a function takes longer than the call of a hook, and hooks are made anew around
    each phase of a step.
    """
    return function(*args, **kwargs)


# A method takes no mark of being disabled.
_untraced = torch._compile._disable_dynamo(_called_result)


def untraced(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return a function that torch.compile calls but does not trace into.

    The compiler is imported at its first call: a script may choose before how it is set up.
    """

    def call(*args: Any, **kwargs: Any) -> _Result:
        return _untraced(function, *args, **kwargs)

    return call


def has_own_memory(kind: type[Tensor]) -> bool:
    """Return whether a tensor class has plain memory and overrides no `__torch_dispatch__`."""
    return (
        kind in (Tensor, nn.Parameter, nn.Buffer)
        or kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    )


def draws_random_numbers(func: Any) -> bool:
    """Return whether an operator draws from a seeded random generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


def storage_key(tensor: Tensor) -> int:
    """Return an integer that identifies a tensor's storage while the storage is alive."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: Tensor) -> Any:
    """Return a weak reference to a tensor's storage, which keeps its `storage_key` from reuse."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def current_node() -> int | None:
    """Return the sequence number of the autograd node that runs; None outside a backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def next_node() -> int:
    """Return the sequence number that the next new autograd node will get."""
    return int(torch._C._autograd._get_sequence_nr())


def transfers(func: Any) -> bool:
    """Return whether an operator only moves values from one rank to another one.

    It must not be waited for: two ranks may start to send to each other before either receives.
    """
    return bool(func.namespace == "c10d") and func.overloadpacket.__name__ in TRANSFERS


def wait_for(func: Any, result: Any) -> None:
    """Wait for the collective behind `result` if `func` is an operator that starts one."""
    if func.namespace == "c10d":
        from torch.distributed import Work

        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, torch.ScriptObject) and str(part._type()).endswith(".Work"):
                work = Work.unbox(part)
                if work is not None:  # NCCL gives none of what the stream of its caller does
                    work.wait()
    elif func.namespace == "_c10d_functional":
        for part in tree_leaves(result):
            torch.ops._c10d_functional.wait_tensor(part)
