"""Collect the versions, settings and variables that can change the bits of a run."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from pathlib import Path

import torch

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.ranks import te_stand_in
from pytest_precision.ranks.gpus.backend import decide, installed_version
from pytest_precision.ranks.gpus.own_device import devices_of_caller
from pytest_precision.trace.header import WARN_ONLY

SEED = 1234
"""Seed of the weights that a run starts with."""

FRESH_SEED = 4321
"""Seed of the weights that a checkpoint overwrites, so that one that loads nothing is seen."""

DECISIVE = (
    "ATEN_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDA_DEVICE_MAX_",
    "CUDA_LAUNCH_",
    "CUDNN_",
    "DNNL_",
    "FLASH_ATTENTION_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_",
    "NVTE_",
    "OMP_",
    "ONEDNN_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
)
"""Prefixes of the variables that decide which kernels run, and in which order they add."""

FILE_PLACES = ("_DIR", "_HOME", "_PATH")
"""Ends of the names of variables that say where files are kept, which decides about no bit."""


def with_backend(cell: Cell) -> tuple[Cell, dict[str, str]]:
    """Return a test's cell with number formats set to native or emulated, and the reason."""
    if not PRECISIONS[cell.precision].quantized:
        return replace(cell, backend="emulated"), {}
    choice = decide(cell.backend, cell.precision, cell.device)
    return replace(cell, backend=choice.backend), {"number_formats": str(choice)}


def environment_of(cell: Cell, *, seeded: bool = True) -> dict[str, str]:
    """Return versions, torch settings and environment variables that can change computed bits.

    Args:
        cell: which declares some of them.
        seeded: whether torch was seeded before the run.
    """
    declared = dict(cell.environment)
    engine = te_stand_in.stand_in_running()
    emulated = {"transformer_engine": engine} if engine else {}
    # A script chooses its device itself.
    on_gpu = not engine and (cell.device == "cuda" or torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return (
        emulated
        | (_of_gpu() if on_gpu else {})
        | ({"seed": str(SEED)} if seeded else {})
        | {
            # Kernels of a CPU with wider vectors add in another order.
            "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "deterministic": _deterministic(),
            "uninitialized_memory": "NaN"
            if torch.empty(1, device="cpu").isnan().item()
            else "as it was",
            "subnormals": "kept"
            if (torch.tensor([1e-38], device="cpu") * 0.1).item() > 0
            else "flushed",
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        }
        | {
            name: value
            for name, value in sorted(os.environ.items())
            if name in declared or (name.startswith(DECISIVE) and not name.endswith(FILE_PLACES))
        }
    )


def _deterministic() -> str:
    """Return torch's setting for deterministic algorithms: "True", "False" or "warn only"."""
    if torch.is_deterministic_algorithms_warn_only_enabled():
        return WARN_ONLY
    return str(torch.are_deterministic_algorithms_enabled())


def _of_gpu() -> dict[str, str]:
    """Return the GPU's model, and the versions of its driver and libraries."""
    major, minor = torch.cuda.get_device_capability()
    engine = installed_version()
    return {
        **({"transformer_engine": engine} if engine else {}),
        "gpu": torch.cuda.get_device_name(),
        "gpus": str(devices_of_caller()),
        "capability": f"{major}.{minor}",
        "cuda": str(torch.version.cuda),
        "cudnn": _cudnn(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
        "driver": _driver(),
    }


def _cudnn() -> str:
    """Return the version of cuDNN, or why torch cannot use the loaded one.

    Transformer Engine may have loaded another release than the one that torch was compiled with.
    """
    try:
        return str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return " ".join(str(error).partition(". ")[0].split())


def _driver() -> str:
    """Return the release of NVIDIA's kernel module; empty if it is not loaded."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
    release = re.search(r"\d+\.\d+(\.\d+)?", first)
    return release[0] if release else ""
