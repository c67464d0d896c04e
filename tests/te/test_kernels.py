"""Kernels: each function of the stand-in against Transformer Engine's own, where a GPU has them.

    pytest tests/te/test_kernels.py                     on a GPU, with `pytest-precision[te]`

Both get the same arguments, the stand-in on the CPU. `test_recorded_kernels.py` compares what was
recorded on a GPU with the stand-in, anywhere. Values may differ by the last bit of their
dtype, whose rounding a kernel's own `tanh` or order of additions can turn, and bytes may not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from kernel_arguments import COMPARED, KEYWORDS, arguments, mapped
from kernel_calls import FILE, Replay
from torch import Tensor

from pytest_precision.te.stand_in import MODULE, functions, has_compiled_module

TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-18}
"""The distance of neighbours, relative to a number; for fp32 of sums of a few hundred."""

ELSEWHERE = {
    "quantize|swizzle": "tests/formats/test_native.py compares the bytes of quantized tensors",
    "create_empty": "its bytes are not yet set",
    "dropout": "random bits are torch's, and each has a byte in place of a bit",
    "^nvfp4_|splits_to|_qb_fwd|graph_safe|grouped_gemm_for": "ci/te runs tests of it by its author",
    "^dbias_d(q|r|s)": "it is dbias_dgelu, which is recorded, with another activation",
}
"""Pattern of a name that is neither compared nor recorded to where else, or why not."""


def difference(name: str, kernel: Callable[..., Any], device: str) -> str:
    """Return how a kernel differs from the stand-in, in results and in what they write to."""
    given = arguments(name)
    assert given is not None
    moved = mapped(given, lambda tensor: tensor.to(device))
    keywords = KEYWORDS.get(name, {})
    ours, theirs = functions()[name](*given, **keywords), kernel(*moved, **keywords)
    pairs = zip(_tensors([given, ours]), _tensors([moved, theirs]), strict=True)
    for number, (mine, other) in enumerate(pairs):
        bound = TOLERANCE.get(mine.dtype, 0.0)
        try:
            torch.testing.assert_close(other.cpu(), mine, rtol=bound, atol=bound * 2.0**-4)
        except AssertionError as error:
            return f"tensor {number}: {error}"
    return ""


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _tensors(one)]
    return [value] if isinstance(value, Tensor) else []


def test_kernels_compute_what_the_stand_in_does() -> None:
    """In results, and in all that they write to."""
    if not torch.cuda.is_available() or not has_compiled_module():
        pytest.skip(f"needs a GPU and {MODULE}: pip install 'pytest-precision[te]'")
    import_module("transformer_engine.pytorch")  # it loads the module
    kernels = import_module(MODULE)
    found = {name: difference(name, getattr(kernels, name), "cuda") for name in COMPARED}
    assert {name: said for name, said in found.items() if said} == {}


def test_every_function_is_compared_here_or_elsewhere() -> None:
    """A function that is new gets arguments here, or a scene that is recorded, or a reason."""
    recorded = {call["name"] for call in Replay(FILE).calls}
    others = {*functions()} - {*COMPARED} - recorded
    known = re.compile("|".join(ELSEWHERE))
    assert [name for name in others if not known.search(name)] == []
    assert len(COMPARED) >= 54
    assert len(others) <= 26


def test_a_kernel_that_differs_is_seen() -> None:
    """The stand-in agrees with itself; a kernel whose results are a bit larger is named."""

    def larger(name: str, *given: Any, **named: Any) -> Any:
        made = functions()[name](*given, **named)
        for tensor in _tensors([made]) or _tensors(list(given)):
            if tensor.is_floating_point():
                tensor.mul_(1.05)
            else:
                tensor.add_(1)
        return made

    for name in COMPARED:
        assert difference(name, functions()[name], "cpu") == "", name
        assert difference(name, partial(larger, name), "cpu").startswith("tensor "), name
