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

OneCast = str | Callable[[str, Tensor], "Tensor | CastParts"] | None
"""What may be declared for one weight."""

Cast = OneCast | Mapping[str, Any]
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
    chosen = _of_name(cast, name)
    if chosen is None:
        return {"": tensor}
    if callable(chosen):
        parts = chosen(name, tensor)
        return {"": parts} if isinstance(parts, Tensor) else parts
    dtype = getattr(torch, chosen, None)
    if isinstance(dtype, torch.dtype):
        return {"": tensor.to(dtype) if tensor.is_floating_point() else tensor}
    quantized = _quantized(chosen, tensor)
    if quantized is None:
        return {"": tensor}
    operand = quantized.operands["rowwise"]
    fp8 = torch.float8_e5m2 if "e5m2" in chosen else torch.float8_e4m3fn
    data = operand.data.view(fp8) if chosen.startswith("fp8") else operand.data
    return {"": data, SCALE: operand.scale}


def computed_by(cast: Cast, name: str, tensor: Tensor) -> Tensor:
    """Return the values that an engine computes with after the cast, in fp32.

    A scale that a function gives multiplies the elements that share it, as far as it says by its
    shape which ones these are.

    Args:
        cast: as it was declared.
        name: of the engine's tensor.
        tensor: the trainer's.

    Raises:
        ValueError: there is no such dtype or format.
    """
    chosen = _of_name(cast, name)
    if isinstance(chosen, str) and not isinstance(getattr(torch, chosen, None), torch.dtype):
        quantized = _quantized(chosen, tensor)
        return tensor.float() if quantized is None else quantized.dequantize()
    parts = dict(cast_by(chosen, name, tensor))
    whole = parts.pop("").float()
    for scale in parts.values():
        spread = _spread(scale.float(), whole)
        whole = whole if spread is None else whole * spread
    return whole


def _spread(scale: Tensor, whole: Tensor) -> Tensor | None:
    """Return the factor of each element of a tensor; None if the shape of the scale tells none."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.ndim == whole.ndim - 1:
        scale = scale.unsqueeze(-1)
    if scale.ndim != whole.ndim:
        return None
    for axis, (parts, length) in enumerate(zip(scale.shape, whole.shape, strict=True)):
        if not 0 < parts <= length:
            return None
        scale = scale.repeat_interleave(-(-length // parts), axis).narrow(axis, 0, length)
    return scale


def _of_name(cast: Cast, name: str) -> OneCast:
    """Return what is declared for a name."""
    while isinstance(cast, Mapping):
        patterns = [*(pattern for pattern in cast if pattern != "default"), "default"]
        cast = next((cast.get(pattern) for pattern in patterns if _fits(name, pattern)), None)
    return cast


def _fits(name: str, pattern: str) -> bool:
    return pattern == "default" or fnmatchcase(name, pattern)


def _quantized(name: str, tensor: Tensor) -> Any:
    """Return a matrix in a format of this package; None for what is no matrix, and stays."""
    # Only here, so that a cast to a dtype of torch imports no format.
    from pytest_precision.formats import registry

    if name not in registry.names():
        names = ", ".join(registry.names())
        expected = f"a cast to a dtype of torch or one of the formats {names}"
        raise ValueError(expected_but_got(expected, repr(name)))
    return None if tensor.ndim != 2 else registry.by_name(name).quantize(tensor, usage="rowwise")
