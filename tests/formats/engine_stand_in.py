"""A stand-in for Transformer Engine's quantizers on the CPU.

It has the signatures of a release, the sizes that the kernels take, and the storage that they make:
scales transposed, and padded with memory as it was. The numbers in it are the emulation's.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from pytest_precision.formats import Operand, QuantizedTensor, by_name
from pytest_precision.formats.native import Native
from pytest_precision.formats.registry import names as format_names

Release = tuple[int, int]

_BOTH = "*, rowwise=True, columnwise=True"
_CURRENT = (
    "with_amax_reduction=False, amax_reduction_group=None, force_pow_2_scales=False, "
    "amax_epsilon=0.0"
)
_BLOCK = (
    "fp8_dtype, *, rowwise, columnwise, amax_epsilon=0.0, force_pow_2_scales=True, "
    "block_scaling_dim=2"
)
_NVFP4 = (
    "fp4_dtype=None, rowwise=True, columnwise=True, with_amax_reduction=False, "
    "amax_reduction_group=None, with_rht=False, with_post_rht_amax=False, "
    "with_2d_quantization=False, stochastic_rounding=False"
)

SIGNATURES: dict[str, dict[Release, str]] = {
    "Float8Quantizer": {(2, 8): f"scale, amax, fp8_dtype, {_BOTH}"},
    "Float8CurrentScalingQuantizer": {
        (2, 8): f"fp8_dtype, device, {_BOTH}, use_existing_amax=False, {_CURRENT}",
        (2, 10): f"fp8_dtype, device, {_BOTH}, use_existing_amax=False, {_CURRENT}, "
        "scale=None, amax=None",
    },
    "Float8BlockQuantizer": {(2, 8): f"{_BLOCK}, all_gather_usage=False", (2, 12): _BLOCK},
    "MXFP8Quantizer": {
        (2, 8): f"fp8_dtype, {_BOTH}",
        (2, 19): f"fp8_dtype, {_BOTH}, with_2d_quantization=False",
    },
    "NVFP4Quantizer": {
        (2, 8): f"{_NVFP4}, with_random_sign_mask=True",
        (2, 16): f"{_NVFP4}, row_scaled_nvfp4=False, with_random_sign_mask=True",
        (2, 17): f"{_NVFP4}, row_scaled_nvfp4=False, nvfp4_use_4over6=False, nvfp4_e4m3_max=448, "
        "nvfp4_4over6_err_mode='MAE', with_random_sign_mask=True",
    },
}
"""The parameters of each constructor, from the release on that had them first."""

MODULES = {
    "float8_tensor": ("Float8Quantizer", "Float8CurrentScalingQuantizer"),
    "float8_blockwise_tensor": ("Float8BlockQuantizer",),
    "mxfp8_tensor": ("MXFP8Quantizer",),
    "nvfp4_tensor": ("NVFP4Quantizer",),
}
"""Where the constructors are, in `transformer_engine.pytorch.tensor`."""


def install(monkeypatch: pytest.MonkeyPatch, release: Release) -> None:
    """Let the quantizers of a release be imported; from 2.20 on, on a GPU without transposes."""
    elements = SimpleNamespace(kFloat8E4M3="e4m3", kFloat8E5M2="e5m2")
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", _module(DType=elements))
    for module, names in MODULES.items():
        classes = {name: _quantizer(name, release) for name in names}
        path = f"transformer_engine.pytorch.tensor.{module}"
        monkeypatch.setitem(sys.modules, path, _module(**classes))


def _module(**contents: Any) -> ModuleType:
    module = ModuleType("stand_in")
    module.__dict__.update(contents)
    return module


def _quantizer(name: str, release: Release) -> type:
    signature = SIGNATURES[name][max(one for one in SIGNATURES[name] if one <= release)]
    bind = eval(f"lambda {signature}: locals()")

    class Quantizer:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.options = {"transposes": release < (2, 20), **bind(*args, **options)}

        def __call__(self, x: torch.Tensor) -> SimpleNamespace:
            assert self.options["rowwise"]
            assert self.options["columnwise"]
            return _KERNELS[name](x, **self.options)

    return Quantizer


def _delayed(x: torch.Tensor, **given: Any) -> SimpleNamespace:
    slot: Any = by_name("fp8_delayed", element=given["fp8_dtype"])
    slot.scale = given["scale"]
    made = slot.quantize(x)
    torch.maximum(given["amax"], made.rowwise.amax, out=given["amax"])
    return _per_tensor(made, given["transposes"])


def _current(x: torch.Tensor, **given: Any) -> SimpleNamespace:
    assert given["device"] == x.device
    scales = "_pow2" if given["force_pow_2_scales"] else ""
    format = by_name(f"fp8_current_{given['fp8_dtype']}{scales}", epsilon=given["amax_epsilon"])
    return _per_tensor(format.quantize(x), given["transposes"])


def _block(x: torch.Tensor, **given: Any) -> SimpleNamespace:
    side = {1: "1x128", 2: "128x128"}[given["block_scaling_dim"]]
    scales = "pow2" if given["force_pow_2_scales"] else "f32"
    name = f"fp8_block_{side}_{given['fp8_dtype']}_{scales}"
    made = by_name(name, epsilon=given["amax_epsilon"]).quantize(x)
    return _blocks(made, {"rowwise": (1, 4), "columnwise": (1, 4)}, turned=side == "1x128")


def _mxfp8(x: torch.Tensor, **given: Any) -> SimpleNamespace:
    _multiples_of(32, x)
    dimensions = "_2d" if given.get("with_2d_quantization") else ""
    made = by_name(f"mxfp8_{given['fp8_dtype']}{dimensions}").quantize(x)
    return _blocks(made, {"rowwise": (128, 4), "columnwise": (4, 128)})


def _nvfp4(x: torch.Tensor, **given: Any) -> SimpleNamespace:
    _multiples_of(16, x)
    if given["with_rht"] and not (given["with_post_rht_amax"] and x.dtype is torch.bfloat16):
        raise RuntimeError("RHT is for bf16, and its amax for what is transformed")
    assert given["with_random_sign_mask"]
    name = "nvfp4_2d" if given["with_2d_quantization"] else "nvfp4_1d"
    name += "_rht" * given["with_rht"] + "_sr" * given["stochastic_rounding"]
    bits = None
    if given["stochastic_rounding"]:
        shapes = (x.shape, x.shape[::-1])
        bits = tuple(torch.randint(0, 256, shape, dtype=torch.uint8) for shape in shapes)
    made = by_name(name).quantize(x, bits)
    stored = _blocks(made, {"rowwise": (128, 4), "columnwise": (128, 4)})
    stored._amax_rowwise, stored._amax_columnwise = made.rowwise.amax, made.columnwise.amax
    return stored


_KERNELS = {
    "Float8Quantizer": _delayed,
    "Float8CurrentScalingQuantizer": _current,
    "Float8BlockQuantizer": _block,
    "MXFP8Quantizer": _mxfp8,
    "NVFP4Quantizer": _nvfp4,
}


def _multiples_of(side: int, x: torch.Tensor) -> None:
    if x.shape[0] % side or x.shape[1] % side:
        raise RuntimeError(f"tensor dims must be divisible by {side} (got {tuple(x.shape)})")


def _per_tensor(made: QuantizedTensor, transposes: bool) -> SimpleNamespace:
    return SimpleNamespace(
        _data=made.rowwise.data,
        _transpose=made.columnwise.data if transposes else None,
        _scale_inv=made.rowwise.scale,
    )


def _blocks(
    made: QuantizedTensor, padding: dict[str, tuple[int, int]], *, turned: bool = False
) -> SimpleNamespace:
    stored = SimpleNamespace()
    for side, (down, across) in padding.items():
        operand: Operand = getattr(made, side)
        scale = operand.scale.t() if turned else operand.scale
        beyond = (0, -scale.shape[1] % across, 0, -scale.shape[0] % down)
        setattr(stored, f"_{side}_data", operand.data)
        setattr(stored, f"_{side}_scale_inv", F.pad(scale, beyond, value=171))
    return stored


def quantized() -> list[str]:
    """Return the names of the formats that Transformer Engine's kernels quantize."""
    return [name for name in format_names() if _has_quantizer(name)]


def _has_quantizer(name: str) -> bool:
    try:
        Native(by_name(name))
    except ValueError:
        return False
    return True
