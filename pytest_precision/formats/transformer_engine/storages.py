"""Conversion between Transformer Engine's quantized tensors and the operands of `formats`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from pytest_precision.formats.e2m1 import E2M1
from pytest_precision.formats.elements import E4M3, E5M2, Element
from pytest_precision.formats.layout import (
    gemm_ready_scale,
    padded_scale,
    swizzled_scale,
    unswizzled_scale,
)
from pytest_precision.formats.product import Factored, factored
from pytest_precision.formats.quantized import Operand, ScaleKind, Storage
from pytest_precision.formats.transformer_engine.kernel_dtypes import DType

OperandSide = Literal["rowwise", "columnwise"]
SIDES: tuple[OperandSide, OperandSide] = ("rowwise", "columnwise")

ELEMENTS: dict[int, Element] = {DType.kFloat8E4M3: E4M3, DType.kFloat8E5M2: E5M2}

DTYPES: dict[int, torch.dtype] = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}

_FAMILIES = {
    "Float8Blockwise": "block",
    "Float8Tensor": "tensor",
    "MXFP8Tensor": "mxfp8",
    "NVFP4Tensor": "nvfp4",
}
"""Beginning of the name of a class of tensors or storages to its family. The classes themselves
cannot be imported before the module that stands in for the kernels."""


def family(tensor: Any) -> str:
    """Return the format family of a quantized tensor, such as `mxfp8`; empty for a plain tensor."""
    return family_of(type(tensor))  # type: ignore[arg-type]  # mypy: a class is hashable


@cache
def family_of(cls: type) -> str:
    """Return the format family of a Transformer Engine tensor class; empty for other classes."""
    names = (base.__name__ for base in cls.__mro__)
    families = (of for name in names for start, of in _FAMILIES.items() if name.startswith(start))
    return next(families, "")


def data_name(kind: str, side: str) -> str:
    """Return the attribute name of a tensor's rowwise or columnwise bytes in a format family."""
    of_tensor = {"rowwise": "_data", "columnwise": "_transpose"}
    return of_tensor[side] if kind == "tensor" else f"_{side}_data"


def matrix(tensor: Tensor) -> Tensor:
    """Return a tensor as a matrix, with its leading dimensions flattened.

    A vector becomes one row.
    """
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)


def transposed_matrix(tensor: Tensor) -> Tensor:
    """Flatten all dimensions of a transposed tensor but the first, to get a matrix."""
    return tensor.reshape(tensor.shape[0], -1)


def held_sides(tensor: Any) -> list[OperandSide]:
    """Return the operands (rowwise, columnwise) for which a quantized tensor has memory."""
    kind = family(tensor)
    return [side for side in SIDES if getattr(tensor, data_name(kind, side)) is not None]


def operand(tensor: Any, side: OperandSide) -> Operand | None:
    """Return a quantized tensor's rowwise or columnwise operand; None if that is not stored.

    Scales come without padding and not swizzled; they may share memory with the tensor.
    """
    kind = family(tensor)
    if kind == "tensor":
        return _per_tensor(tensor, side)
    data = getattr(tensor, f"_{side}_data")
    if data is None:
        return None
    across = side == "columnwise"
    scale = getattr(tensor, f"_{side}_scale_inv")
    if kind == "block":
        return _blockwise(tensor, data, scale, transposed=across)
    if kind == "mxfp8":
        codes, element = matrix(data), ELEMENTS[int(tensor._fp8_dtype)]
        block = (32, 1) if across else (1, 32)
        shape = codes.shape[0] // block[0], codes.shape[1] // block[1]
        stored_tensor = _unpadded_tensor(
            scale, shape, tensor._with_gemm_swizzled_scales, turned=across
        )
        return Operand(codes, stored_tensor, None, Storage(element, "e8m0", block))
    packed_tensor = transposed_matrix(data) if across else matrix(data)
    shape = packed_tensor.shape[0], packed_tensor.shape[1] * 2 // 16
    amax = tensor._amax_columnwise if across else tensor._amax_rowwise
    stored_tensor = _unpadded_tensor(scale, shape, tensor._with_gemm_swizzled_scales)
    read: ScaleKind = "nvfp4_256" if tensor._nvfp4_e4m3_max == 256 else "nvfp4"
    return Operand(packed_tensor, stored_tensor, amax, Storage(E2M1, read, (1, 16), across))


def values(
    tensor: Any, side: OperandSide = "rowwise", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return a tensor's values as a matrix, dequantized from rowwise or columnwise bytes.

    Raises:
        RuntimeError: the tensor does not hold this side, as the kernels would also say.
    """
    if not family(tensor):
        return matrix(tensor.detach()).to(dtype)
    source = _required_operand(tensor, side)
    return source.dequantize(dtype) if source.data.numel() else _empty_values(source, dtype)


def multiplied(tensor: Any, side: OperandSide) -> Factored:
    """Return a tensor's rowwise or columnwise values for a GEMM, and a factor for the GEMM's sums.

    Raises:
        RuntimeError: see `values`.
    """
    source = _required_operand(tensor, side) if family(tensor) else None
    if source is None or not source.data.numel():
        return Factored(values(tensor, side))
    return factored(source)


def _required_operand(tensor: Any, side: OperandSide) -> Operand:
    source = operand(tensor, side)
    if source is None:
        raise RuntimeError(
            f"expected {side} data but got a {type(tensor).__name__} without them; "
            f"let its quantizer make the {side} usage, too"
        )
    return source


def _empty_values(source: Operand, dtype: torch.dtype) -> Tensor:
    rows, columns = source.data.shape[0], source.data.shape[1] * source.storage.element.per_byte
    shape = (columns, rows) if source.storage.transposed else (rows, columns)
    return torch.empty(shape, dtype=dtype)


def store(tensor: Any, side: OperandSide, source: Operand) -> None:
    """Write the bytes and scales of an operand into a quantized tensor's existing buffers."""
    kind = family(tensor)
    data = getattr(tensor, data_name(kind, side))
    if kind == "tensor":
        tensor._scale_inv.copy_(source.scale.reshape(tensor._scale_inv.shape))
    else:
        target = getattr(tensor, f"_{side}_scale_inv")
        swizzled = getattr(tensor, "_with_gemm_swizzled_scales", False)
        target.copy_(_as_stored(kind, source, swizzled=swizzled).reshape(target.shape))
    data.copy_(source.data.reshape(data.shape))
    if kind == "nvfp4":
        assert source.amax is not None
        amax = getattr(tensor, f"_amax_{side}")
        if amax.numel() == source.amax.numel():
            amax.copy_(source.amax)
        else:  # the memory was made for one amax, and each row has its own
            setattr(tensor, f"_amax_{side}", source.amax)


def memory_of(kind: str, operands: Mapping[str, Operand], *, swizzled: bool) -> dict[str, Tensor]:
    """Return operands' bytes, scales and amaxes by the attribute names of tensors of a family.

    Args:
        kind: the family of the tensor; see `family`.
        operands: by side.
        swizzled: whether scales are in the order in which the GEMM reads them.
    """
    memory = {data_name(kind, side): source.data for side, source in operands.items()}
    if kind == "tensor":
        return memory | {"_scale_inv": next(iter(operands.values())).scale}
    for side, source in operands.items():
        memory[f"_{side}_scale_inv"] = _as_stored(kind, source, swizzled=swizzled)
        if source.amax is not None:
            memory[f"_amax_{side}"] = source.amax.clone()  # both sides of a matrix may share one
    return memory


def swizzle(tensor: Any) -> None:
    """Replace a tensor's scales by a copy in the order in which GEMM kernels read them."""
    if family(tensor) not in ("mxfp8", "nvfp4") or tensor._with_gemm_swizzled_scales:
        return
    operands = {side: operand(tensor, side) for side in held_sides(tensor)}
    tensor._with_gemm_swizzled_scales = True
    for side, source in operands.items():
        assert source is not None
        name = f"_{side}_scale_inv"
        shape = getattr(tensor, name).shape
        setattr(tensor, name, _as_stored(family(tensor), source, swizzled=True).reshape(shape))


def _per_tensor(tensor: Any, side: OperandSide) -> Operand | None:
    element, scale = ELEMENTS[int(tensor._fp8_dtype)], tensor._scale_inv.reshape(1)
    stored = tensor._transpose
    if side == "columnwise" and stored is not None and not tensor._transpose_invalid:
        codes = transposed_matrix(stored)
        return Operand(codes, scale, None, Storage(element, "fp32", transposed=True))
    if tensor._data is None:
        return None
    # The bytes serve both sides; a GPU whose GEMM reads one order only holds the transpose too.
    return Operand(matrix(tensor._data), scale, None, Storage(element, "fp32"))


def _blockwise(tensor: Any, data: Tensor, scale: Tensor, *, transposed: bool) -> Operand:
    element = ELEMENTS[int(tensor._fp8_dtype)]
    codes = transposed_matrix(data) if transposed else matrix(data)
    rows, columns = codes.shape[0], -(-codes.shape[1] // 128)
    if tensor._is_2D_scaled:
        stored_tensor = scale[: -(-rows // 128), :columns]
        return Operand(codes, stored_tensor, None, Storage(element, "fp32", (128, 128), transposed))
    stored_tensor = scale[:columns, :rows].t()
    return Operand(codes, stored_tensor, None, Storage(element, "fp32", (1, 128), transposed))


def _unpadded_tensor(
    scale: Tensor, shape: tuple[int, int], swizzled: bool, *, turned: bool = False
) -> Tensor:
    """Return stored scales without padding, and in plain order if they were swizzled."""
    if swizzled:
        return unswizzled_scale(scale, shape, turned=turned)
    multiples = (4, 128) if turned else (128, 4)
    rows, columns = (-(-n // m) * m for n, m in zip(shape, multiples, strict=True))
    return scale.reshape(rows, columns)[: shape[0], : shape[1]]


def _as_stored(kind: str, source: Operand, *, swizzled: bool) -> Tensor:
    """Return scales padded and ordered as Transformer Engine's tensors store them."""
    block = source.storage.block
    assert block is not None
    if kind == "block":
        return gemm_ready_scale(source.scale, block)
    turned = block == (32, 1)
    if swizzled:
        return swizzled_scale(source.scale, turned=turned)
    return padded_scale(source.scale, (4, 128) if turned else (128, 4))
