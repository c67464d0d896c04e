"""Arguments with which functions of the compiled module are compared, one by one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_precision.formats.transformer_engine.kernel_dtypes import DType
from pytest_precision.te import activations
from pytest_precision.te.stand_in import functions

ROWS, WIDTH = 32, 64

BATCHES = 8
"""How many batches a block of threads takes in the softmax of an upper triangle: the kernel refuses
what is no multiple of them, and Transformer Engine's layer asks it for nothing else."""


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
    if "upper_triang" in name:
        x = values(BATCHES, ROWS, ROWS)
    if name.endswith("backward"):
        scores = x.float()
        if "causal" in name or "triang" in name:  # kernels read no further than the diagonal
            scores = scores.masked_fill(
                torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), -torch.inf
            )
        return [x, torch.softmax(scores, -1).to(x.dtype), 0.5]
    masked = name == "scaled_masked_softmax_forward"
    return [x, *([values(2, 1, ROWS, ROWS) > 0] if masked else []), 0.5]


def arguments(name: str) -> list[Any] | None:
    """Return the arguments with which a function is compared; None if it is not, here."""
    noop, tensors = torch.zeros(1, dtype=torch.int32), [values(5), values(300)]
    lists = [65536, noop, [tensors, copy.deepcopy(tensors)]]
    data = values(ROWS, WIDTH).view(torch.uint8)
    listed: dict[str, list[Any]] = {
        "compute_amax": [values(ROWS, WIDTH), torch.zeros(1)],
        "fp8_transpose": [data, DType.kFloat8E4M3],
        "multi_tensor_l2norm": [65536, noop, [tensors], True],
        "multi_tensor_scale": [*lists, 0.5],
        "multi_tensor_scale_tensor": [*lists, torch.tensor([0.5])],
        "multi_tensor_unscale_l2norm": [65536, noop, [tensors], torch.tensor([2.0]), True],
        "swap_first_dims": [values(4, ROWS, WIDTH)],
    }
    if name in activations.FUNCTIONS and not name.startswith("dbias_"):
        return of_activation(name)
    if "norm_" in name:
        return of_norm(name)
    return of_softmax(name) if "softmax" in name else listed.get(name)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [mapped(one, function) for one in value]
    return function(value.clone()) if isinstance(value, Tensor) else value


KEYWORDS = {"fp8_transpose": {"out": None}, "swap_first_dims": {"out": None}}
"""Name of a function to the arguments that it takes by name alone."""

COMPARED = sorted(name for name in functions() if arguments(name) is not None)
