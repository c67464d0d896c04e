"""The GEMM functions of Transformer Engine's compiled module, computed in fp32 by torch.

All matrices are stored row by row, so that the kernels' `A` and `B`, which cuBLAS reads column by
column, give out = op(B) @ op(A).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.formats.product import multiply
from pytest_precision.formats.transformer_engine.grouped_tensors import members
from pytest_precision.formats.transformer_engine.kernel_dtypes import DType
from pytest_precision.formats.transformer_engine.storages import DTYPES, matrix, multiplied, values
from pytest_precision.te.activations import gelu_by_tanh, gradients_of
from pytest_precision.te.quantize import quantize


def generic_gemm(
    A: Any,  # noqa: N803 (the names are the compiled module's)
    transA: bool,  # noqa: N803
    B: Any,  # noqa: N803
    transB: bool,  # noqa: N803
    D: Tensor | None,  # noqa: N803
    quantizer: Any,
    output_dtype: int | None,
    bias: Tensor | None,
    bias_type: int,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    workspace: Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> tuple[Any, Tensor | None, Tensor | None, Tensor | None]:
    """Multiply two matrices, and if asked add a bias, accumulate into `D`, and apply GELU.

    Returns:
        The product, the bias gradient, the input of GELU, and `extra_output`.
    """
    if comm_overlap is not None:
        raise NotImplementedError(
            "expected a GEMM without user buffers but got comm_overlap, which the stand-in for "
            "Transformer Engine 2.20 lacks; build the module without ub_ arguments"
        )
    dtype = _dtype(A, output_dtype) if D is None else D.dtype
    product = _product(A, transA, B, transB)  # fresh memory, which what follows may write to
    if alpha != 1.0:
        product.mul_(alpha)
    if _scales_blocks(A, B):
        epilogue = (bias is not None and bias.numel() > 0, gelu, grad)
        _refuse_blocks(A, B, product, dtype, epilogue, use_split_accumulator)
    bias_grad = gelu_input = None
    if bias is not None and bias.numel():
        if grad:
            bias_grad = _summed(B, transB).to(dtype)  # that of the product, not of the bias
        else:
            product.add_(bias)
    if accumulate and D is not None:
        product = _plus(product, D, 1.0 if beta is None else beta, (A, B))
    if gelu and grad:
        assert gelu_in is not None
        (product,) = gradients_of(gelu_by_tanh, product, matrix(gelu_in))
    elif gelu:
        # The product may be `D` itself, which the result is copied to.
        gelu_input = product.to(DTYPES[int(bias_type)], copy=True)
        product = gelu_by_tanh(gelu_input.float())
    if not transB:
        product = product.reshape(*B.size()[:-1], product.shape[-1])
    if gelu_input is not None:
        gelu_input = gelu_input.reshape(product.shape)
    if quantizer is not None:
        output = quantize(product.to(dtype), quantizer, D)
    else:
        output = product.to(dtype) if D is None else D.copy_(product.reshape(D.shape))
    return output, bias_grad, gelu_input, extra_output


def te_general_grouped_gemm(
    A: Sequence[Any],  # noqa: N803
    transa: bool,
    B: Sequence[Any],  # noqa: N803
    transb: bool,
    D: Sequence[Tensor],  # noqa: N803
    D_type: int,  # noqa: N803
    m_splits: Sequence[int],
    bias: list[Tensor],
    bias_type: int,
    single_output: bool,
    pre_gelu_out: Sequence[Tensor],
    grad: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> list[Tensor]:
    """Multiply each pair of matrices into its own output, or into its own rows of a single output.

    Returns:
        The biases, which hold their gradients with `grad`.
    """
    outputs = D
    if single_output:
        rows = matrix(D[0])[: sum(m_splits)]
        outputs = torch.split(rows, list(m_splits))
    for a, b, out, term, before_gelu in zip(A, B, outputs, bias, pre_gelu_out, strict=True):
        if before_gelu.numel():
            raise NotImplementedError(
                "expected a grouped GEMM without GELU but got pre_gelu_out, which the stand-in for "
                "Transformer Engine 2.20 lacks; apply the activation by itself"
            )
        if _is_empty(a) or _is_empty(b):
            if out.numel() and not accumulate:
                out.zero_()
            if grad:
                term.zero_()
            continue
        product = _product(a, transa, b, transb)
        if term.numel() and grad:
            term.copy_(_summed(b, transb))
        elif term.numel():
            product.add_(term)
        out.copy_(_plus(product, out, 1.0, (a, b)) if accumulate else product)
    return bias


def te_general_grouped_gemm_for_grouped_tensor(
    A: Any,  # noqa: N803
    transa: bool,
    B: Any,  # noqa: N803
    transb: bool,
    D: Any,  # noqa: N803
    bias: Any,
    bias_scale: Tensor | None,
    alpha: Tensor,
    beta: Tensor,
    *_: Any,
) -> Any:
    """Multiply pairs of matrices, given as lists or grouped tensors, into the matrices of `D`.

    Each output is its `alpha` times the product, plus its bias, plus its `beta` times its old
    values. With `bias_scale`, the bias is multiplied by the scale of each row.
    """
    outputs = members(D)
    biases = members(bias) if bias is not None else [None] * len(outputs)
    row = 0
    operands = zip(members(A), members(B), outputs, biases, strict=True)
    for number, (a, b, out, term) in enumerate(operands):
        height = out.shape[0]
        empty = _is_empty(a) or _is_empty(b)
        product = (
            torch.zeros(out.shape, dtype=torch.float32) if empty else _product(a, transa, b, transb)
        )
        factor, old_factor = (
            float(factors[number if factors.numel() > 1 else 0]) for factors in (alpha, beta)
        )
        product = product.reshape(out.shape) * factor
        if term is not None and height:
            added = term.float().reshape(1, -1)
            if bias_scale is not None:
                added = added * bias_scale[row : row + height].float().reshape(-1, 1)
            product = product + added
        row += height
        out.copy_(_plus(product, out, old_factor, (a, b)) if old_factor else product)
    return D


te_general_grouped_gemm_for_discrete_in = te_general_grouped_gemm_for_grouped_tensor
te_general_grouped_gemm_for_discrete_out = te_general_grouped_gemm_for_grouped_tensor


def _product(a: Any, transa: bool, b: Any, transb: bool) -> Tensor:
    """Return `b` @ `a` in fp32; `transa` and `transb` tell which operands to transpose first."""
    left = multiplied(a, "rowwise" if transa else "columnwise")
    right = multiplied(b, "columnwise" if transb else "rowwise")
    return multiply(right, left, turn_a=transb, turn_b=transa)


def _summed(b: Any, transb: bool) -> Tensor:
    """Return the sum over the rows of `b` in fp32: the bias gradient, if `b` is dy."""
    return values(b, "columnwise" if transb else "rowwise").sum(0)


def _plus(product: Tensor, out: Tensor, old_factor: float, operands: tuple[Any, Any]) -> Tensor:
    """Return product + `old_factor` * (the output's old values), in fp32.

    Where cuBLAS scales blocks, it first rounds the product to the dtype of the output.
    """
    if _scales_blocks(*operands):
        product = product.to(out.dtype).float()
    old_values = out.float().reshape(product.shape)
    return (old_values if old_factor == 1.0 else old_values.mul_(old_factor)).add_(product)


def _scales_blocks(a: Any, b: Any) -> bool:
    """Return whether operands in blocks of 128 elements use cuBLAS's GEMM for them (before sm_100).

    From 10.0 on, Transformer Engine computes the products of such operands with MXFP8's GEMM.
    """
    blocks = hasattr(a, "_is_2D_scaled") and hasattr(b, "_is_2D_scaled")
    return blocks and torch.cuda.get_device_capability() < (10, 0)


def _refuse_blocks(
    a: Any,
    b: Any,
    product: Tensor,
    dtype: torch.dtype,
    epilogue: tuple[bool, bool, bool],
    split: bool,
) -> None:
    """Raise RuntimeError, with a GPU's message, for a block-scaled GEMM that the GPU refuses.

    Args:
        a: the first operand.
        b: the second one.
        product: their product.
        dtype: that of the output.
        epilogue: whether there is a bias, a GELU, and whether it is their gradients.
        split: whether the accumulator is split.
    """
    bias, gelu, grad = epilogue
    rows, columns = product.shape
    depth = torch.Size(a.size()).numel() // max(columns, 1)
    problems = {
        ("dimension requirement", "pad sizes to multiples of 16"): (
            depth % 16 or columns % 8 or (rows % 8 and not b._is_2D_scaled)
        ),
        (
            "Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported",
            "quantize one of the operands in 1-D blocks",
        ): a._is_2D_scaled and b._is_2D_scaled,
        (
            "Epilogue requested outside of the available and tested cuBLAS functionality",
            "compute bias and GELU, or their gradients, after the GEMM",
        ): (bias and (gelu or grad)) or (gelu and not grad),
        ("an unsupported value or parameter was passed", "apply GELU after the GEMM"): (
            gelu and dtype == torch.float32
        ),
        (
            "CUBLAS_STATUS_NOT_SUPPORTED",
            "use the split accumulator, and e4m3 for one of the operands",
        ): not split or a._fp8_dtype == b._fp8_dtype == DType.kFloat8E5M2,
    }
    for (text, advice), is_there in problems.items():
        if is_there:
            raise RuntimeError(
                "expected a block-scaled GEMM that a GPU computes but got one that it refuses with "
                f"{text!r}; {advice}"
            )


def _dtype(a: Any, output_dtype: int | None) -> torch.dtype:
    """Return the dtype of a GEMM's new output: the wanted one, or the dtype of its operand `a`."""
    if output_dtype is not None:
        return DTYPES[int(output_dtype)]
    operand_dtype: torch.dtype = getattr(a, "dtype", torch.bfloat16)
    return operand_dtype


def _is_empty(tensor: Any) -> bool:
    return torch.Size(tensor.size()).numel() == 0
