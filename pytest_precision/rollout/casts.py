"""The cast that a test declares between what the trainer holds and what the engine holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got, is_bad_input

__tracebackhide__ = is_bad_input

CastParts = Mapping[str, Tensor]
"""Ending of the name to the tensor: `{"": bytes, "_scale": scale}`."""

Cast = str | Callable[[str, Tensor], "Tensor | CastParts"] | Mapping[str, Any] | None
"""What a test may declare: a dtype, a format, a function, or one of them for each pattern."""

SCALE = "_scale"
"""What the name of a scale ends with, where a format of this package makes it."""


def cast_by(cast: Cast, name: str, tensor: Tensor) -> CastParts:
    """Return what an engine should hold of a tensor.

    Args:
        cast: as it was declared; a format gives `name` its bytes and `name_scale` its scale.
        name: of the engine's tensor.
        tensor: the trainer's.

    Raises:
        ValueError: there is no such dtype or format.
    """
    if isinstance(cast, Mapping):
        patterns = [*(pattern for pattern in cast if pattern != "default"), "default"]
        fits = (cast.get(pattern) for pattern in patterns if _fits(name, pattern))
        cast = next(fits, None)
        return cast_by(cast, name, tensor)
    if cast is None:
        return {"": tensor}
    if callable(cast):
        parts = cast(name, tensor)
        return {"": parts} if isinstance(parts, Tensor) else parts
    dtype = getattr(torch, cast, None)
    if isinstance(dtype, torch.dtype):
        return {"": tensor.to(dtype) if tensor.is_floating_point() else tensor}
    return _quantized(cast, tensor)


def _fits(name: str, pattern: str) -> bool:
    return pattern == "default" or fnmatchcase(name, pattern)


def _quantized(name: str, tensor: Tensor) -> CastParts:
    # Only here, so that a cast to a dtype of torch imports no format.
    from pytest_precision.formats import registry

    if name not in registry.names():
        names = ", ".join(registry.names())
        expected = f"a cast to a dtype of torch or one of the formats {names}"
        raise ValueError(expected_but_got(expected, repr(name)))
    if tensor.ndim != 2:
        return {"": tensor}
    operand = registry.by_name(name).quantize(tensor, usage="rowwise").operands["rowwise"]
    fp8 = torch.float8_e5m2 if "e5m2" in name else torch.float8_e4m3fn
    data = operand.data.view(fp8) if name.startswith("fp8") else operand.data
    return {"": data, SCALE: operand.scale}
