"""Checkpoints that are read in the dtypes that they were written in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from pytest_precision._torch import whole_checkpoint
from pytest_precision.errors import expected_but_got


def read(folder: Path) -> dict[str, Any]:
    """Return all of a checkpoint as it was saved.

    `torch.distributed.checkpoint.load` copies it into tensors that it is given, value by value.
    """
    return whole_checkpoint(folder)


def expect_dtype(name: str, own: Tensor, saved: Tensor) -> None:
    """Raise where a tensor of the model would have to be cast.

    Raises:
        ValueError: the two have different dtypes.
    """
    if saved.dtype != own.dtype:
        raise ValueError(
            expected_but_got(
                f"{name} to be {own.dtype}",
                saved.dtype,
                "load what an engine of the same primary weight saved",
            )
        )
