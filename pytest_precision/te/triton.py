"""An importable stand-in for Triton: launching a kernel calls a torch version of it.

Launching a kernel without such a version raises.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

from torch import Tensor

from pytest_precision.te import cross_entropy, row_maps

TRITON_MODULES = ("triton", "triton.language", "triton.language.core", "triton.language.standard")


def grouped_dbias(
    dy: Tensor,
    dbias: Tensor,
    offsets: Tensor,
    scales: Tensor,
    bias: Tensor,
    dscales: Tensor,
    hidden: int,
    *,
    HAS_SCALES: bool,  # noqa: N803 (the names are the kernel's)
    **_: Any,
) -> None:
    """Add each group's sum of rows, with each row scaled if asked, to its bias gradient."""
    ends = offsets.tolist()
    for group, (start, stop) in enumerate(pairwise(ends)):
        rows = dy[start:stop].float()
        if HAS_SCALES:
            dscales[start:stop] += (rows * bias[group].float()).sum(1)
            rows = rows * scales[start:stop].float().unsqueeze(1)
        dbias[group] += rows.sum(0)


KERNELS: dict[str, Any] = {
    "_grouped_dbias_kernel": grouped_dbias,
    **cross_entropy.CROSS_ENTROPY_KERNELS,
    **row_maps.ROW_MAP_KERNELS,
}
"""Name of a kernel to the torch function that computes it; a kernel without one needs a GPU."""


class _Anything(type):
    """A metaclass whose classes have any attribute, so that kernels' sources can be imported."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel


class _Kernel(metaclass=_Anything):
    """A stand-in for what kernels' sources use of Triton: compiled kernels, decorators, types."""

    def __init__(self, function: Any = None, *_: Any, **__: Any) -> None:
        self._function = function

    def __class_getitem__(cls, _: Any) -> type[_Kernel]:
        return cls

    def __call__(self, function: Any = None, *_: Any, **__: Any) -> Any:
        return function

    def __getitem__(self, grid: Any) -> Any:
        name = getattr(self._function, "__name__", "of Triton")
        if name in KERNELS:
            return KERNELS[name]
        raise NotImplementedError(
            f"expected a kernel of the stand-in for Transformer Engine 2.20 but got {name}, which "
            "Triton compiles for a GPU; use the form without it"
        )


class _Module(ModuleType):
    """A stand-in for a module of Triton."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel


def enter() -> None:
    """Make `import triton` find the stand-in, also if Triton is installed.

    A build of torch for CUDA brings Triton, which compiles nothing on a machine without a GPU. What
    has imported it before keeps it.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        del sys.modules[name]
    modules = {name: _Module(name) for name in TRITON_MODULES}
    main: Any = modules["triton"]
    main.__version__ = "3.0.0"
    main.jit = _Kernel
    main.autotune = main.heuristics = _decorator
    main.cdiv = lambda a, b: -(-a // b)
    main.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
        sys.modules[name] = module


def _decorator(*_: Any, **__: Any) -> Any:
    return lambda function: function
