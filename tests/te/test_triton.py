"""What takes Triton's place: kernels have their plain form, also where Triton is installed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pytest_precision.te import triton
from pytest_precision.te.triton import KERNELS


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, which has come after an installed Triton was imported."""
    for name in ("triton", "triton.language", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in triton.TRITON_MODULES:  # so that they are taken out again
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    triton.enter()
    return sys.modules["triton"]


def test_an_installed_triton_gives_way(entered: Any) -> None:
    """A build of torch for CUDA brings one, which looks for `libcuda` on a machine without it."""

    def online_softmax_kernel() -> None:
        """A kernel that has no plain form."""

    name = next(iter(KERNELS))
    known = type(name, (), {"__name__": name})()
    assert entered.jit(known)[(1,)] is KERNELS[name]
    with pytest.raises(NotImplementedError, match="got online_softmax_kernel, which Triton"):
        entered.jit(online_softmax_kernel)[(1,)]


def test_no_part_of_it_stays(entered: Any) -> None:
    """A module of the installed one beside those of the stand-in would be found by its name."""
    assert {n for n in sys.modules if n.partition(".")[0] == "triton"} == set(triton.TRITON_MODULES)
