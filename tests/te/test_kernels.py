"""Kernels: each function of the stand-in against Transformer Engine's own, where a GPU has them.

    pytest tests/te/test_kernels.py                     on a GPU, with `pytest-precision[te]`

Both get the same arguments, the stand-in on the CPU. Values may differ by the last bit of their
dtype, whose rounding a kernel's own `tanh` or order of additions can turn, and bytes may not.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_precision.te import activations
from pytest_precision.te.stand_in import MODULE, functions

ROWS, WIDTH = 32, 64

TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-18}
"""The distance of neighbours, relative to a number; for fp32 of sums of a few hundred."""

ELSEWHERE = {
    "quantize|swizzle": "tests/formats/test_native.py compares the bytes of quantized tensors",
    "gemm": "a sum of products is added in another order",
    "dropout_fwd": "random bits are torch's",
    "fused_|moe_|splits_to": "ci/te runs Transformer Engine's own test of it",
    "partial|^nvfp4_|multi_tensor_(adam|sgd|compute)": "ci/te runs Transformer Engine's test of it",
}
"""Pattern of a name to where else, or why not, a function is compared."""


def values(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return normal values, the same at each call."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def of_activation(name: str) -> list[Any]:
    """Return the arguments of an activation, or of its gradient, by their names."""
    narrow = WIDTH // 2 if "glu" in name else WIDTH
    made = {
        "input": values(ROWS, WIDTH),
        "fwd_input": values(ROWS, WIDTH),
        "grad": values(ROWS, narrow),
        "act_scales": values(ROWS, dtype=torch.float32),
        "quantizer": None,
    }
    parameters = inspect.signature(activations.FUNCTIONS[name]).parameters
    return [made[one] for one in parameters if one in made]


def of_norm(name: str) -> list[Any]:
    """Return the arguments of a norm or of its backward."""
    from pytest_precision.te.enums import DType

    x, weight = values(ROWS, WIDTH), values(WIDTH)
    rows = values(ROWS, dtype=torch.float32)
    mean = [rows] if name.startswith("layer") else []
    if name.endswith("fwd"):
        return [x, weight, *([weight] if mean else []), 1e-5, None, None, DType.kBFloat16, 0, False]
    added = [x] if name.endswith("add") else []
    return [x, x, *added, *mean, rows.abs(), weight, 0, False]


def of_softmax(name: str) -> list[Any]:
    """Return the arguments of a softmax over the last of four dimensions, or of its backward."""
    x = values(2, 2, ROWS, ROWS)
    x = x[0] if "upper_triang" in name else x
    if name.endswith("backward"):
        return [x, torch.softmax(x.float(), -1).to(x.dtype), 0.5]
    masked = name == "scaled_masked_softmax_forward"
    return [x, *([values(2, 1, ROWS, ROWS) > 0] if masked else []), 0.5]


def arguments(name: str) -> list[Any] | None:
    """Return the arguments with which a function is compared; None if it is not, here."""
    noop, tensors = torch.zeros(1, dtype=torch.int32), [values(5), values(300)]
    lists = [65536, noop, [tensors, copy.deepcopy(tensors)]]
    data = values(ROWS, WIDTH).view(torch.uint8)
    listed: dict[str, list[Any]] = {
        "compute_amax": [values(ROWS, WIDTH), torch.zeros(1)],
        "dropout_bwd": [values(ROWS, WIDTH), (values(ROWS, WIDTH) > 0).to(torch.uint8), 0.5],
        "fp8_transpose": [data, 7],
        "multi_tensor_l2norm": [65536, noop, [tensors], True],
        "multi_tensor_scale": [*lists, 0.5],
        "multi_tensor_scale_tensor": [*lists, torch.tensor([0.5])],
        "multi_tensor_unscale_l2norm": [65536, noop, [tensors], torch.tensor([2.0]), True],
        "swap_first_dims": [values(4, ROWS, WIDTH)],
    }
    if name in activations.FUNCTIONS:
        return of_activation(name)
    if "norm_" in name:
        return of_norm(name)
    return of_softmax(name) if "softmax" in name else listed.get(name)


def difference(name: str, kernel: Callable[..., Any], device: str) -> str:
    """Return how a kernel differs from the stand-in, in results and in what they write to."""
    given = arguments(name)
    assert given is not None
    moved = _mapped(given, lambda tensor: tensor.to(device))
    ours, theirs = functions()[name](*given), kernel(*moved)
    pairs = zip(_tensors([given, ours]), _tensors([moved, theirs]), strict=True)
    for number, (mine, other) in enumerate(pairs):
        bound = TOLERANCE.get(mine.dtype, 0.0)
        try:
            torch.testing.assert_close(other.cpu(), mine, rtol=bound, atol=bound * 2.0**-4)
        except AssertionError as error:
            return f"tensor {number}: {error}"
    return ""


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_mapped(one, function) for one in value]
    return function(value.clone()) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return [value] if isinstance(value, Tensor) else []


COMPARED = sorted(name for name in functions() if arguments(name) is not None)


@pytest.mark.parametrize("name", COMPARED)
def test_a_kernel_computes_what_the_stand_in_does(name: str) -> None:
    """In results, and in all that it writes to."""
    if not torch.cuda.is_available() or find_spec(MODULE) is None:
        pytest.skip(f"needs a GPU and {MODULE}: pip install 'pytest-precision[te]'")
    import_module("transformer_engine.pytorch")  # it loads the module
    kernels = import_module(MODULE)
    assert difference(name, getattr(kernels, name), "cuda") == ""


def test_every_function_is_compared_here_or_elsewhere() -> None:
    """A function that is new gets arguments here, or a reason."""
    known = re.compile("|".join(ELSEWHERE))
    left = [name for name in functions() if name not in COMPARED and not known.search(name)]
    assert len(COMPARED) >= 60
    assert left == []


@pytest.mark.parametrize("name", COMPARED)
def test_a_kernel_that_differs_is_seen(name: str) -> None:
    """The stand-in agrees with itself; a kernel whose results are a bit larger is named."""

    def larger(*given: Any) -> Any:
        made = functions()[name](*given)
        for tensor in _tensors([made]) or _tensors(list(given)):
            if tensor.is_floating_point():
                tensor.mul_(1.05)
            else:
                tensor.add_(1)
        return made

    assert difference(name, functions()[name], "cpu") == ""
    assert difference(name, larger, "cpu").startswith("tensor ")
