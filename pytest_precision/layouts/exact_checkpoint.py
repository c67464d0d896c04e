"""Read checkpoints in the dtypes in which they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from pytest_precision._torch.distributed import whole_checkpoint
from pytest_precision.errors import expected_but_got


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return all of a checkpoint as it was saved.

    `torch.distributed.checkpoint.load` would cast values to the dtypes of the tensors it is given.
    """
    return whole_checkpoint(folder)


def expect_dtype(name: str, own: Tensor, saved: Tensor) -> None:
    """Refuse a saved tensor that would have to be cast.

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
