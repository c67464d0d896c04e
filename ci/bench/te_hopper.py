"""pytest -p te_hopper: the stand-in says that the GPU has compute capability 9.0.

On such a GPU cuBLAS scales blocks of 128 values; Transformer Engine's tests of it are skipped on
others. Their reference adds by a Triton kernel, which has its plain form here.
"""

from __future__ import annotations

import pytest
from torch import Tensor


@pytest.hookimpl(trylast=True)
def pytest_load_initial_conftests() -> None:
    """Say so once the stand-in is in place, and before a test asks."""
    from pytest_precision.te import cuda
    from pytest_precision.te.triton import KERNELS

    KERNELS["fused_fma_kernel"] = add_product
    cuda.enter((9, 0))


def add_product(y: Tensor, x: Tensor, s: Tensor, *_: object) -> None:
    """Add the product of `x` and `s` to `y`, each in fp32, with one rounding for both."""
    y.copy_(x.double() * s.double() + y.double())
