"""Checks of the options and dtypes in an optimizer's parameter group, and of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got, named


def check_group(group: Mapping[str, Any], param_dtypes: Sequence[torch.dtype]) -> None:
    """Raise ValueError for a parameter group that Adam cannot update.

    Args:
        group: a group with `params`, `lr`, `betas`, `eps` and `weight_decay`.
        param_dtypes: the dtypes that a parameter may have.

    Raises:
        ValueError: a value is out of its range, or a parameter has another dtype.
    """
    for name in ("lr", "eps", "weight_decay"):
        check(group[name] >= 0, f"{name} >= 0", name, group[name])
    betas = group["betas"]
    check(len(betas) == 2 and all(0 <= b < 1 for b in betas), "two betas in [0, 1)", "betas", betas)
    for param in group["params"]:
        check_dtype("param.dtype", param.dtype, param_dtypes)


def check_dtype(name: str, dtype: Any, allowed: Sequence[torch.dtype]) -> None:
    """Raise ValueError for a dtype that is not in `allowed`.

    Raises:
        ValueError: the dtype is not allowed; the message lists the allowed ones.
    """
    check(dtype in allowed, f"{name} of {', '.join(map(str, allowed))}", name, dtype)


def check_grad(grad: Tensor) -> None:
    """Raise ValueError for a gradient that is not dense, or not of fp32, bf16 or fp16.

    Raises:
        ValueError: the gradient has another layout or dtype, which the message names.
    """
    check(grad.layout == torch.strided, "a dense gradient", "grad.layout", grad.layout)
    check_dtype("grad.dtype", grad.dtype, (torch.float32, torch.bfloat16, torch.float16))


def check(holds: bool, expected: str, name: str, value: Any) -> None:
    """Raise a `ValueError` that names an argument and its value, unless `holds` is true.

    Raises:
        ValueError: "expected ... but got name=value (type)", if `holds` is false.
    """
    if not holds:
        raise ValueError(
            expected_but_got(
                expected, named(name, value), "see the arguments in the optimizer's docstring"
            )
        )
