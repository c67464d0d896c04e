"""Fingerprint: the state of a process that outlives a job, and that the next one computes with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the first reading: some releases add a folder to sys.path
from torch.nn.modules import module
from torch.optim import optimizer

SET_BY_LIBRARIES = frozenset(
    {
        "CUDA_MODULE_LOADING",
        "KINETO_LOG_LEVEL",
        "NVTE_CUDA_INCLUDE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    }
)
"""Variables that torch and Transformer Engine write for themselves when they first need them."""

_HOOKS: Mapping[str, Mapping[int, object]] = {
    f"hook of all {what}: {name.removeprefix('_global_')}": value
    for what, holder in (("modules", module), ("optimizers", optimizer))
    for name, value in vars(holder).items()
    if name.startswith("_global_") and name.endswith("hooks") and isinstance(value, dict)
}

_cudnn: Any = torch.backends.cudnn  # modules that are put in place when torch is imported
_mkldnn: Any = torch.backends.mkldnn
_smallest = sys.float_info.min


def _subnormals_flushed() -> bool:
    # The flag is the processor's, for all arithmetic of the thread, Python's own included.
    return _smallest / 2 == 0.0


_READERS: Mapping[str, Callable[[], object]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic algorithms warn only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill of uninitialized memory": lambda: (
        torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    ),
    "fp32 precision of CUDA matmul": lambda: torch.backends.cuda.matmul.fp32_precision,
    "fp32 precision of cuDNN convolutions": lambda: _cudnn.conv.fp32_precision,
    "fp32 precision of cuDNN RNNs": lambda: _cudnn.rnn.fp32_precision,
    "fp32 precision of oneDNN matmul": lambda: _mkldnn.matmul.fp32_precision,
    "fp16 reduced precision reduction": torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    "bf16 reduced precision reduction": torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    "fp16 accumulation": torch._C._get_cublas_allow_fp16_accumulation,
    "cuDNN enabled": torch._C._get_cudnn_enabled,
    "cuDNN benchmark": torch._C._get_cudnn_benchmark,
    "cuDNN deterministic": torch._C._get_cudnn_deterministic,
    "flush of subnormals": _subnormals_flushed,
    "number of threads": torch.get_num_threads,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "autocast on cpu": lambda: torch.is_autocast_enabled("cpu"),
    "autocast on cuda": lambda: torch.is_autocast_enabled("cuda"),
    "autocast dtype on cpu": lambda: torch.get_autocast_dtype("cpu"),
    "autocast dtype on cuda": lambda: torch.get_autocast_dtype("cuda"),
    "autocast cache": torch.is_autocast_cache_enabled,
    "process group of all ranks": dist.is_initialized,
    "current directory": os.getcwd,
}


def read() -> dict[str, object]:
    """Everything that a job may change here and must put back.

    Random numbers are not among it, since every job is seeded.
    """
    state = {what: _read(reader) for what, reader in _READERS.items()}
    state |= {what: _names(hooks) for what, hooks in _HOOKS.items()}
    state["environment variable"] = {
        name: value for name, value in os.environ.items() if name not in SET_BY_LIBRARIES
    }
    # An entry that a module adds when it is imported once more says nothing new.
    state["entry of sys.path"] = dict.fromkeys(sys.path, "present")
    return state


def _read(reader: Callable[[], object]) -> object:
    try:
        return reader()
    except (OSError, RuntimeError) as error:  # a directory that is gone, two APIs for one flag
        return f"unreadable: {error}"


def _names(hooks: Mapping[int, object]) -> dict[str, str]:
    # Without its number: hooks that were taken off again have left a gap.
    return {f"{getattr(hook, '__qualname__', hook)}": "registered" for hook in hooks.values()}
