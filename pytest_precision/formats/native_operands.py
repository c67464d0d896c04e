"""Calls of Transformer Engine's quantizers, and conversion of their results to operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats import mxfp8, packed
from pytest_precision.formats.blockwise import FP8_BLOCK, BlockScaling
from pytest_precision.formats.delayed import DelayedScaling
from pytest_precision.formats.e2m1 import E2M1
from pytest_precision.formats.elements import Element
from pytest_precision.formats.format import Format
from pytest_precision.formats.mxfp8 import Mxfp8
from pytest_precision.formats.nvfp4 import Nvfp4
from pytest_precision.formats.per_tensor import CurrentScaling
from pytest_precision.formats.quantized import Operand, Storage
from pytest_precision.formats.scaling import tensor_amax


def _delayed_operands(format: DelayedScaling, x: torch.Tensor) -> dict[str, Operand]:
    # The kernel takes the maximum with what is in it.
    amax = torch.zeros(1, dtype=torch.float32, device=x.device)
    kernel = _quantizer("float8_tensor", "Float8Quantizer")
    te_tensor = kernel(format.scale, amax, _element(format.element))(x)
    format.record(amax)
    return _per_tensor(te_tensor, format.element, amax)


def _current_operands(format: CurrentScaling, x: torch.Tensor) -> dict[str, Operand]:
    kernel = _quantizer("float8_tensor", "Float8CurrentScalingQuantizer")
    te_tensor = kernel(
        _element(format.element),
        device=x.device,
        force_pow_2_scales=format.power_of_two,
        amax_epsilon=format.epsilon,
    )(x)
    return _per_tensor(te_tensor, format.element, tensor_amax(x))  # the kernel's own is not kept


def _block(format: BlockScaling, x: torch.Tensor) -> dict[str, Operand]:
    kernel = _quantizer("float8_blockwise_tensor", "Float8BlockQuantizer")
    te_tensor = kernel(
        _element(format.element),
        rowwise=True,
        columnwise=True,
        amax_epsilon=format.epsilon,
        force_pow_2_scales=format.power_of_two,
        block_scaling_dim=2 if format.two_dimensional else 1,
    )(x)
    block = (FP8_BLOCK if format.two_dimensional else 1, FP8_BLOCK)
    storages = [Storage(format.element, "fp32", block, side) for side in (False, True)]
    return _blocks(te_tensor, storages, (None, None), x)


def _mxfp8(format: Mxfp8, x: torch.Tensor) -> dict[str, Operand]:
    # Releases before 2.19, which lack the keyword, have blocks of one dimension only.
    options = {"with_2d_quantization": True} if format.two_dimensional else {}
    padding = (0, -x.shape[1] % mxfp8.MXFP8_BLOCK, 0, -x.shape[0] % mxfp8.MXFP8_BLOCK)
    kernel = _quantizer("mxfp8_tensor", "MXFP8Quantizer")
    te_tensor = kernel(_element(format.element), **options)(F.pad(x, padding))
    blocks = ((1, mxfp8.MXFP8_BLOCK), (mxfp8.MXFP8_BLOCK, 1))
    storages = [Storage(format.element, "e8m0", block) for block in blocks]
    return _blocks(te_tensor, storages, (None, None), x)


def _nvfp4(format: Nvfp4, x: torch.Tensor) -> dict[str, Operand]:
    te_tensor = _quantizer("nvfp4_tensor", "NVFP4Quantizer")(
        with_rht=format.hadamard,
        with_post_rht_amax=format.hadamard,
        with_2d_quantization=format.two_dimensional,
        stochastic_rounding=format.stochastic,
    )(x)
    storages = [Storage(E2M1, "nvfp4", (1, packed.NVFP4_BLOCK), side) for side in (False, True)]
    return _blocks(te_tensor, storages, (te_tensor._amax_rowwise, te_tensor._amax_columnwise), x)


class _Quantizer(NamedTuple):
    """How to call Transformer Engine's quantizer for a group of number formats.

    Attributes:
        call: returns the operands "rowwise" and "columnwise" of a matrix.
        options: fields of the format that `call` tells the kernel; any other must have its default.
    """

    call: Callable[[Any, torch.Tensor], dict[str, Operand]]
    options: frozenset[str]


# The quantizers have neither torchao's and the OCP document's arithmetic, nor the cast of masters,
# nor reductions other than over a process group; newer ones of NVFP4 are not used natively.
_QUANTIZERS = {
    DelayedScaling: _Quantizer(_delayed_operands, frozenset()),
    CurrentScaling: _Quantizer(
        _current_operands, frozenset({"element", "power_of_two", "epsilon"})
    ),
    BlockScaling: _Quantizer(
        _block, frozenset({"element", "two_dimensional", "power_of_two", "epsilon"})
    ),
    Mxfp8: _Quantizer(_mxfp8, frozenset({"element", "two_dimensional"})),
    Nvfp4: _Quantizer(_nvfp4, frozenset({"two_dimensional", "hadamard", "stochastic"})),
}


def expect_quantizer(format: Format) -> None:
    """Raise unless Transformer Engine has a quantizer with the arithmetic of a format.

    Raises:
        ValueError: it has none for formats of this class, or none that knows a field's value.
    """
    quantizer = _quantizer_of(format)
    if quantizer is None:
        raise _no_quantizer(f"{format.name} ({type(format).__name__})")
    any_format: Any = format  # that of delayed scaling has no fields, but a state
    for field in fields(any_format) if is_dataclass(any_format) else ():
        value = getattr(any_format, field.name)
        if field.name not in {"name", *quantizer.options} and value != field.default:
            raise _no_quantizer(f"{format.name} with {named(field.name, value)}")


def kernel_operands(format: Format, x: torch.Tensor) -> dict[str, Operand]:
    """Quantize by Transformer Engine's kernels; return operands "rowwise" and "columnwise".

    Args:
        format: a format that `expect_quantizer` takes.
        x: fp32, bf16 or fp16 [rows, columns], on the GPU; `Native.quantize` has checked it.
    """
    quantizer = _quantizer_of(format)
    assert quantizer is not None
    return quantizer.call(format, x)


def _no_quantizer(got: str) -> ValueError:
    expected = "a format that Transformer Engine's quantizers have"
    return ValueError(expected_but_got(expected, got, "emulate it"))


def _quantizer_of(format: Format) -> _Quantizer | None:
    quantizers = (quantizer for kind, quantizer in _QUANTIZERS.items() if isinstance(format, kind))
    return next(quantizers, None)


def _per_tensor(te_tensor: Any, element: Element, amax: torch.Tensor) -> dict[str, Operand]:
    """Return the rowwise and columnwise operands in a Transformer Engine `Float8Tensor`."""
    transpose = te_tensor._transpose
    if transpose is None:  # on GPUs whose GEMM reads both orders
        transpose = te_tensor._data.t().contiguous()
    return {
        "rowwise": Operand(te_tensor._data, te_tensor._scale_inv, amax, Storage(element, "fp32")),
        "columnwise": Operand(
            transpose, te_tensor._scale_inv, amax, Storage(element, "fp32", transposed=True)
        ),
    }


def _blocks(
    te_tensor: Any,
    storages: list[Storage],
    amaxes: tuple[torch.Tensor | None, torch.Tensor | None],
    x: torch.Tensor,
) -> dict[str, Operand]:
    """Return the rowwise and columnwise operands in a block-scaled Transformer Engine tensor."""
    return {
        side: valid(
            getattr(te_tensor, f"_{side}_data"),
            getattr(te_tensor, f"_{side}_scale_inv"),
            amax,
            storage,
            (x.shape[0], x.shape[1]),
        )
        for side, storage, amax in zip(("rowwise", "columnwise"), storages, amaxes, strict=True)
    }


def valid(
    data: torch.Tensor,
    scale: torch.Tensor,
    amax: torch.Tensor | None,
    storage: Storage,
    shape: tuple[int, int],
) -> Operand:
    """Convert a kernel's quantized bytes and block scales to an operand, without padding.

    Args:
        data: uint8, as it is stored.
        scale: as it is stored, not swizzled: see `layout.padded_scale` and `gemm_ready_scale`.
        amax: fp32 [1], if the format has one.
        storage: storage of the operand.
        shape: shape of the matrix that was quantized, before it was padded.
    """
    assert storage.block is not None
    down, across = storage.block
    if storage.scale == "fp32" and down == 1:  # stored as the GEMM reads them: transposed
        scale = scale.t()
    rows, columns = shape[::-1] if storage.transposed else shape
    scale = scale[: -(-rows // down), : -(-columns // across)].contiguous()
    width = columns // storage.element.per_byte
    return Operand(data[:rows, :width].contiguous(), scale, amax, storage)


def _quantizer(module: str, name: str) -> Any:
    return getattr(import_module(f"transformer_engine.pytorch.tensor.{module}"), name)


def _element(element: Element) -> Any:
    kinds = import_module("transformer_engine_torch").DType
    return {"e4m3": kinds.kFloat8E4M3, "e5m2": kinds.kFloat8E5M2}[element.name]
