"""The dtypes in which a layout stores and computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_precision.engine.readable import expect_known
from pytest_precision.errors import expect_one_of, expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS

DTYPE_OF_NAME = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtypes by the names of precisions and primary weights; quantized ones are bf16."""

_STATE_DTYPES = {**DTYPE_OF_NAME, "fp8": torch.uint8}
STORED_MASTERS = ("fp32", "fp16")
STORED_MOMENTS = ("fp32", "bf16", "fp16", "fp8")
UNSCALED = ("fp32", "bf16")
"""The dtypes in which masters, moments, and state without a scale can be stored."""


def resident(model: nn.Module, cell: Cell) -> tuple[nn.Module, torch.dtype]:
    """Store a model's parameters in the format `cell.primary_weight`, by casts or quantization.

    Buffers keep their dtype: rotary frequencies that are rounded to bf16 encode other positions.

    Args:
        model: a model in fp32, as `workload.model(cell)` returns it.
        cell: parameters are stored in its primary weight; linear layers quantize where its
            precision does, by its backend.

    Returns:
        The model, and the dtype that it computes in, for `compute_in`.

    Raises:
        ValueError: for complex parameters and sparse gradients, and where no linear layer can be
            quantized as the cell says.
    """
    expect_known(model)
    model = _stored_in(storage_dtype(cell), model)
    if PRECISIONS[cell.precision].quantized or cell.grad_accum_fusion:
        # Here alone, so that other cells import no number format.
        from pytest_precision.modules.replace import quantize_linears

        model = quantize_linears(
            model,
            cell.precision,
            primary_weight=cell.primary_weight,
            fuse_wgrad_accumulation=cell.grad_accum_fusion,
            backend=cell.backend,
        )
    return model, DTYPE_OF_NAME.get(cell.precision, torch.bfloat16)


def storage_dtype(cell: Cell) -> torch.dtype:
    """Return the dtype in which `cell.primary_weight` stores parameters; bf16 if quantized."""
    return DTYPE_OF_NAME.get(cell.primary_weight, torch.bfloat16)


def _stored_in(dtype: torch.dtype, model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return model


def state_dtype(option: str, name: str, choices: tuple[str, ...]) -> torch.dtype:
    """Convert a name such as "bf16" or "fp8" to the dtype in which optimizer state is stored.

    Raises:
        ValueError: for a name that is not one of `choices`.
    """
    expect_one_of(option, name, choices, "dtypes of optimizer state are given by these names")
    return _STATE_DTYPES[name]


def expect_saved_dtype(name: str, target: Tensor, saved_tensor: Tensor) -> None:
    """Raise ValueError if a saved tensor and the tensor that it is loaded into differ in dtype.

    Raises:
        ValueError: the two have different dtypes.
    """
    if saved_tensor.dtype != target.dtype:
        raise ValueError(
            expected_but_got(
                f"{name} to be {target.dtype}",
                saved_tensor.dtype,
                "load a checkpoint of a layout with the same primary_weight",
            )
        )
