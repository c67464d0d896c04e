"""Transformer Engine's functions that quantize and dequantize single tensors, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision import formats
from pytest_precision.formats import QuantizedTensor
from pytest_precision.formats.hadamard import SIGNS
from pytest_precision.formats.inputs import Usage
from pytest_precision.formats.per_tensor import quantize_by
from pytest_precision.formats.scaling import ReduceAmax, tensor_amax
from pytest_precision.formats.transformer_engine import random_bits, storages
from pytest_precision.formats.transformer_engine.storages import (
    DTYPES,
    ELEMENTS,
    SIDES,
    OperandSide,
    family,
    matrix,
)
from pytest_precision.te.allocation import (
    create_empty_quantized_tensor,
    expect_whole_blocks,
    is_turned,
)

_DESCRIBED_OTHERWISE = (("nvfp4", "_columnwise_data"), ("nvfp4", "_amax_columnwise"))
"""Buffers whose shapes the quantizer describes wrongly: it halves the wrong dimension of the bytes
(see `create_empty_quantized_tensor`), and has one amax where each row has its own."""

_IN_BULK = {"Float8BlockQuantizer", "MXFP8Quantizer", "NVFP4Quantizer"}
"""Quantizers for which the compiled module allocates all pieces of a split tensor at once."""

SCALED_ERROR = "NVTE_NVFP4_4OVER6_ERR_USE_FAST_MATH"
"""Environment variable by which the kernels choose how 4over6 computes errors."""


def quantize(
    tensor: Tensor,
    quantizer: Any,
    output: Any = None,
    noop: Tensor | None = None,
    *,
    exact: Tensor | None = None,
) -> Any:
    """Quantize a tensor into `output`, or into a new one; do nothing if `noop` is 1.

    Kernels that compute and quantize at once have `exact`, the fp32 result that `tensor` is
    rounded from: delayed scaling casts it; current scaling and NVFP4 take the amax of the tensor
    from it; block scaling and MXFP8 do not look at it.
    """
    if skipped(noop):
        return output
    if output is None:
        return _quantized_tensor(tensor, quantizer, exact)
    if family(output) in ("mxfp8", "nvfp4"):
        output._with_gemm_swizzled_scales = bool(quantizer.optimize_for_gemm)
    if family(output) == "tensor" and output._transpose is None and is_turned(quantizer):
        *leading, columns = output.size()
        output._transpose = torch.empty((columns, *leading), dtype=torch.uint8)
    if family(output) == "nvfp4":
        output._row_scaled_nvfp4 = quantizer.row_scaled_nvfp4
        output._nvfp4_use_4over6 = quantizer.nvfp4_use_4over6
        output._nvfp4_e4m3_max = quantizer.nvfp4_e4m3_max
    write(tensor, quantizer, output, exact)
    return output


def _quantized_tensor(tensor: Tensor, quantizer: Any, exact: Tensor | None) -> Any:
    """Quantize a tensor into a new one of the quantizer's Transformer Engine class."""
    shape = tuple(tensor.shape)
    expect_whole_blocks(type(quantizer).__name__, shape)
    if type(quantizer).__name__ == "Float8Quantizer" or not tensor.numel():
        output = create_empty_quantized_tensor(quantizer, shape, tensor.dtype)
        write(tensor, quantizer, output, exact)
        return output
    metadata = quantizer.create_metadata(shape, dtype=tensor.dtype)
    kind, specs = storages.family_of(metadata["cls"]), quantizer.inner_tensor_specs(shape)
    sides = [side for side in SIDES if storages.data_name(kind, side) in specs]
    quantized_matrix = quantized(matrix(tensor.detach()).contiguous(), quantizer, sides, exact)
    swizzled = kind in ("mxfp8", "nvfp4") and bool(quantizer.optimize_for_gemm)
    inner = storages.memory_of(kind, quantized_matrix.operands, swizzled=swizzled)
    for name, (size, _) in specs.items():
        if inner[name].shape != size and (kind, name) not in _DESCRIBED_OTHERWISE:
            inner[name] = inner[name].reshape(size)
    return metadata["cls"].__tensor_unflatten__(inner, metadata, shape, None)


def dequantize(tensor: Any, otype: int) -> Tensor:
    """Return the values of a quantized tensor, rounded once to a dtype."""
    sides = storages.held_sides(tensor)
    side: OperandSide = "rowwise" if "rowwise" in sides else "columnwise"
    values = storages.values(tensor, side, DTYPES[int(otype)])
    shape = torch.Size(tensor.size())
    return values.reshape(shape) if shape.numel() == values.numel() else values


def split_quantize(
    tensor: Tensor,
    split_sections: Sequence[int],
    quantizer_list: Sequence[Any],
    *,
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    """Split a tensor by rows, and quantize each piece by its own quantizer."""
    pieces = torch.split(tensor, list(split_sections))
    quantized_pieces = [
        quantize(piece, by) for piece, by in zip(pieces, quantizer_list, strict=True)
    ]
    kinds = {type(quantizer).__name__ for quantizer in quantizer_list}
    if not disable_bulk_allocation and len(kinds) == 1 and kinds <= _IN_BULK:
        for quantized_piece in quantized_pieces:
            # Memory for all at once is asked for without a dtype.
            quantized_piece._dtype = torch.float32
    return quantized_pieces


def bgrad_quantize(grad: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
    """Return dy's sum over rows, which is the bias gradient, and dy quantized."""
    return matrix(grad).float().sum(0).to(grad.dtype), quantize(grad, quantizer)


def compute_amax(input: Tensor, amax: Tensor) -> None:
    """Write the largest magnitude of a tensor to `amax`."""
    if input.numel():
        amax.copy_(tensor_amax(matrix(input.detach())).reshape(amax.shape))


def write(tensor: Tensor, quantizer: Any, output: Any, exact: Tensor | None = None) -> None:
    """Quantize a tensor into those rowwise and columnwise buffers that `output` has."""
    x = matrix(tensor.detach()).contiguous()
    sides = storages.held_sides(output)
    if x.numel():
        quantized_matrix = quantized(x, quantizer, sides, exact)
        for side in sides:
            storages.store(output, side, quantized_matrix.operands[side])
    elif family(output) == "tensor":
        output._scale_inv.fill_(1.0)
    if family(output) == "tensor" and output._data is not None:
        output._transpose_invalid = "columnwise" not in sides


def quantized(
    x: Tensor, quantizer: Any, sides: Sequence[OperandSide], exact: Tensor | None = None
) -> QuantizedTensor:
    """Quantize a matrix rowwise, columnwise or both (`sides`) in a quantizer's format.

    `exact` is the fp32 matrix before it was rounded; see `quantize`.

    Raises:
        NotImplementedError: `formats` has no such format.
    """
    kind = type(quantizer).__name__
    if kind not in _FORMATS:
        raise NotImplementedError(
            f"expected one of {', '.join(_FORMATS)} but got a {kind}, for which the stand-in for "
            "Transformer Engine 2.20 has no arithmetic; use another recipe"
        )
    usage: Usage = "both" if len(sides) == 2 else sides[0]
    quantized_matrix: QuantizedTensor = _FORMATS[kind](x, exact, quantizer, usage)
    return quantized_matrix


def skipped(noop: Tensor | None) -> bool:
    """Return whether a kernel's `noop` flag is 1, which tells it to do nothing."""
    return noop is not None and noop.numel() > 0 and float(noop.reshape(-1)[0]) == 1.0


def _delayed(x: Tensor, exact: Tensor | None, quantizer: Any, usage: Usage) -> QuantizedTensor:
    x = x if exact is None else matrix(exact)
    amax = tensor_amax(x)
    if quantizer.amax.numel():
        quantizer.amax.copy_(torch.maximum(quantizer.amax, amax.reshape(quantizer.amax.shape)))
    scale = quantizer.scale.reshape(1)
    return quantize_by("fp8_delayed", x, scale, amax, ELEMENTS[int(quantizer.dtype)], usage)


def _current(x: Tensor, exact: Tensor | None, quantizer: Any, usage: Usage) -> QuantizedTensor:
    scales = "_pow2" if quantizer.force_pow_2_scales else ""
    name = f"fp8_current_{_element(quantizer)}{scales}"
    reduce = _reduction(quantizer, exact)
    format = _format(name, epsilon=quantizer.amax_epsilon, reduce_amax=reduce)
    return format.quantize(x, usage=usage)


def _blockwise(x: Tensor, _: Tensor | None, quantizer: Any, usage: Usage) -> QuantizedTensor:
    block = "128x128" if quantizer.block_scaling_dim == 2 else "1x128"
    scales = "pow2" if quantizer.force_pow_2_scales else "f32"
    name = f"fp8_block_{block}_{_element(quantizer)}_{scales}"
    return _format(name, epsilon=quantizer.amax_epsilon).quantize(x, usage=usage)


def _mxfp8(x: Tensor, _: Tensor | None, quantizer: Any, usage: Usage) -> QuantizedTensor:
    name = f"mxfp8_{_element(quantizer)}{'_2d' if quantizer.with_2d_quantization else ''}"
    return _format(name).quantize(x, usage=usage)


def _nvfp4(x: Tensor, exact: Tensor | None, quantizer: Any, usage: Usage) -> QuantizedTensor:
    alone = quantizer.row_scaled_nvfp4 or (quantizer.with_rht and quantizer.with_post_rht_amax)
    reduce = _reduction(quantizer, None if alone else exact)
    options: dict[str, Any] = {"reduce_amax": reduce}
    if quantizer.nvfp4_use_4over6:
        options["error"] = quantizer.nvfp4_4over6_err_mode
        options["scale_maximum"] = quantizer.nvfp4_e4m3_max
        options["scaled_error"] = os.environ.get(SCALED_ERROR, "0") not in ("", "0")
    rounds_at_random = quantizer.stochastic_rounding
    bits = random_bits.drawn(quantizer, (x.shape[0], x.shape[1])) if rounds_at_random else None
    parts = {
        "_row": quantizer.row_scaled_nvfp4,
        "_4over6": quantizer.nvfp4_use_4over6,
        "_rht": quantizer.with_rht,
        "_sr": bits is not None,
    }
    name = "nvfp4_2d" if quantizer.with_2d_quantization else "nvfp4_1d"
    name += "".join(part for part, is_used in parts.items() if is_used)
    if name not in formats.names():
        raise NotImplementedError(
            f"expected one of {', '.join(formats.names())} but got {name}, which the stand-in for "
            "Transformer Engine 2.20 lacks; change the recipe"
        )
    format = _format(name, **options)
    if not quantizer.with_rht or quantizer.rht_matrix_random_sign_mask_t or usage == "rowwise":
        return format.quantize(x, bits, usage=usage)
    # The transform of `formats` has signs, which undo those of its input.
    signs = torch.tensor(SIGNS, dtype=x.dtype).repeat(x.shape[0] // len(SIGNS))
    unsigned = format.quantize(x * signs.unsqueeze(1), bits, usage="columnwise")
    if usage == "columnwise":
        return unsigned
    rowwise_tensor = format.quantize(x, bits, usage="rowwise")
    return replace(rowwise_tensor, operands=rowwise_tensor.operands | unsigned.operands)


_FORMATS = {
    "Float8Quantizer": _delayed,
    "Float8CurrentScalingQuantizer": _current,
    "Float8BlockQuantizer": _blockwise,
    "MXFP8Quantizer": _mxfp8,
    "NVFP4Quantizer": _nvfp4,
}
"""Name of a Transformer Engine quantizer class to a function that quantizes as it does."""


def _format(name: str, **options: Any) -> formats.Format:
    """Return a number format by name; it is cached, except one with a `reduce_amax` function.

    Such a function belongs to one tensor, whose ranks' process group it may hold.
    """
    if options.get("reduce_amax") is not None:
        return formats.by_name(name, **options)
    return _kept_format(name, **options)


_kept_format = lru_cache(maxsize=64)(formats.by_name)
"""Makes and checks a format once: on small tensors, that takes as long as a kernel."""


def _element(quantizer: Any) -> str:
    return ELEMENTS[int(quantizer.dtype)].name


def _reduction(quantizer: Any, exact: Tensor | None) -> ReduceAmax | None:
    """Return a function that replaces a tensor's amax before scaling; None to keep the amax.

    The function takes the amax of `exact` instead, if given, and then the MAX over the ranks that
    hold parts of the tensor, if the quantizer asks for it. None means the tensor's own amax.
    """
    over_ranks = getattr(quantizer, "with_amax_reduction", False)
    if not over_ranks and exact is None:
        return None

    def reduce(amax: Tensor) -> Tensor:
        amax = amax if exact is None else tensor_amax(matrix(exact))
        if over_ranks:
            group = quantizer._canonicalized_amax_reduction_group()
            dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
        return amax

    return reduce
