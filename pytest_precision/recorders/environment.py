"""Environment of a run: what decides about its bits besides the run itself."""

from __future__ import annotations

import os
import platform

import torch

from pytest_precision import te
from pytest_precision.matrix.cell import Cell

SEED = 1234
"""Seed of the weights that a run starts with."""

DECISIVE = ("ATEN_", "CUBLAS_", "CUDA_DEVICE_MAX_", "MKL_", "NCCL_", "NVTE_", "OMP_", "TORCH_")
"""Prefixes of the variables that decide which kernels run, and in which order they add."""


def environment_of(cell: Cell) -> dict[str, str]:
    """Return what else decides about the bits: versions, pins and variables."""
    declared = dict(cell.environment)
    stand_in = {"transformer_engine": te.running()} if te.running() else {}
    return (
        stand_in
        | {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "seed": str(SEED),
            "threads": str(torch.get_num_threads()),
            "deterministic": str(torch.are_deterministic_algorithms_enabled()),
            "uninitialized_memory": "NaN" if torch.empty(1).isnan().item() else "as it was",
            "subnormals": "kept" if (torch.tensor([1e-38]) * 0.1).item() > 0 else "flushed",
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }
        | {
            name: value
            for name, value in sorted(os.environ.items())
            if name in declared or name.startswith(DECISIVE)
        }
    )
