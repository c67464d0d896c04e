"""Fingerprint: the process-wide settings that outlive a job and could affect the next one."""

from __future__ import annotations

import gc
import locale
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

# Before the first reading: in some releases these add a folder to sys.path and a warnings filter.
import torch.distributed.nn
import torch.fx.experimental.symbolic_shapes

from pytest_precision._torch.distributed import process_groups
from pytest_precision._torch.training import global_hooks
from pytest_precision.ranks.state.accelerator import started

SET_BY_LIBRARIES = frozenset(
    {
        "CUDA_MODULE_LOADING",
        "KINETO_LOG_LEVEL",
        "NVTE_CUDA_INCLUDE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TRITON_PTXAS_PATH",
    }
)
"""Variables that torch and Transformer Engine set themselves when they first need them."""

VENDORED = os.path.join("setuptools", "_vendor")
"""Setuptools adds this folder of its own at the end of `sys.path` when it is imported, which
`torch.utils.cpp_extension` does."""

_SIGNALS = tuple(
    signal.Signals[f"SIG{name}"]
    for name in ("ABRT", "ALRM", "CHLD", "HUP", "INT", "PIPE", "QUIT", "TERM", "USR1", "USR2")
)

_MODULE_OF_TORCH = re.compile(r"\^?torch(\\?\.\w|\$)")
"""How the pattern of a filter begins that fits modules of torch alone."""

_smallest = sys.float_info.min


def _subnormals_flushed() -> bool:
    # The processor has this flag per thread; it applies to Python's own arithmetic too.
    return _smallest / 2 == 0.0


def _umask() -> str:
    mask = os.umask(0)  # the only way to read it
    os.umask(mask)
    return f"{mask:#o}"


def _nnpack_enabled() -> bool:
    nnpack: Any = torch.backends.nnpack
    (enabled,) = nnpack.set_flags(False)  # the only public way to read it
    nnpack.set_flags(enabled)
    return bool(enabled)


_OF_TORCH = {
    "default dtype": "get_default_dtype",
    "default device": "get_default_device",
    "float32 matmul precision": "get_float32_matmul_precision",
    "deterministic algorithms": "are_deterministic_algorithms_enabled",
    "deterministic algorithms warn only": "is_deterministic_algorithms_warn_only_enabled",
    "fill of uninitialized memory": "utils.deterministic.fill_uninitialized_memory",
    "fp32 precision of CUDA matmul": "backends.cuda.matmul.fp32_precision",
    "fp32 precision of cuDNN convolutions": "backends.cudnn.conv.fp32_precision",
    "fp32 precision of cuDNN RNNs": "backends.cudnn.rnn.fp32_precision",
    "fp32 precision of oneDNN matmul": "backends.mkldnn.matmul.fp32_precision",
    "fp32 precision of oneDNN convolutions": "backends.mkldnn.conv.fp32_precision",
    "fp32 precision of oneDNN RNNs": "backends.mkldnn.rnn.fp32_precision",
    "fp16 reduced precision reduction": (
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction"
    ),
    "bf16 reduced precision reduction": (
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction"
    ),
    "fp16 accumulation": "backends.cuda.matmul.allow_fp16_accumulation",
    "cuDNN enabled": "backends.cudnn.enabled",
    "cuDNN benchmark": "backends.cudnn.benchmark",
    "cuDNN deterministic": "backends.cudnn.deterministic",
    "oneDNN enabled": "backends.mkldnn.enabled",
    "oneDNN deterministic": "backends.mkldnn.deterministic",
    "engine of quantized operators": "backends.quantized.engine",
    "flash attention": "backends.cuda.flash_sdp_enabled",
    "memory-efficient attention": "backends.cuda.mem_efficient_sdp_enabled",
    "math attention": "backends.cuda.math_sdp_enabled",
    "cuDNN attention": "backends.cuda.cudnn_sdp_enabled",
    "reduced precision reduction of math attention": (
        "backends.cuda.fp16_bf16_reduction_math_sdp_allowed"
    ),
    "fast path of multi-head attention": "backends.mha.get_fastpath_enabled",
    "preferred linear algebra library": "backends.cuda.preferred_linalg_library",
    "preferred BLAS library": "backends.cuda.preferred_blas_library",
    "number of threads": "get_num_threads",
    "grad mode": "is_grad_enabled",
    "inference mode": "is_inference_mode_enabled",
    "anomaly detection": "is_anomaly_enabled",
    "autocast cache": "is_autocast_cache_enabled",
    "process group of all ranks": "distributed.is_initialized",
}
"""What torch says by an attribute, or by a function without arguments, and where in `torch`."""

_READERS: Mapping[str, Callable[[], object]] = {
    "NNPACK enabled": lambda: _nnpack_enabled(),
    "order of contractions in einsum": partial(
        attrgetter("backends.opt_einsum.enabled", "backends.opt_einsum.strategy"), torch
    ),
    "flush of subnormals": _subnormals_flushed,
    "current device": lambda: _accelerator("current_device"),
    "current stream": lambda: _accelerator("current_stream"),
    "autocast on cpu": partial(torch.is_autocast_enabled, "cpu"),
    "autocast on cuda": partial(torch.is_autocast_enabled, "cuda"),
    "autocast dtype on cpu": partial(torch.get_autocast_dtype, "cpu"),
    "autocast dtype on cuda": partial(torch.get_autocast_dtype, "cuda"),
    "current directory": os.getcwd,
    "umask": _umask,
    "locale": partial(locale.setlocale, locale.LC_ALL),
    "garbage collection": gc.isenabled,
    "thresholds of garbage collection": gc.get_threshold,
    "numpy's handling of floating-point errors": np.geterr,
    "handler of signal": lambda: {
        number.name: _handler_name(signal.getsignal(number)) for number in _SIGNALS
    },
    "warnings filter": lambda: {
        _filter(*entry): "present" for entry in warnings.filters if not _prints_for_torch(*entry)
    },
    "hook of all": lambda: {
        f"{owner}: {when} {_name(hook)}": "registered" for owner, when, hook in global_hooks()
    },
    "process group named by its ranks": lambda: _groups_named_by_ranks(),
}


def read_state() -> dict[str, object]:
    """Return the process-wide settings of torch, Python and the system that calls must restore.

    The states of random number generators are not included, since every job is seeded.
    """
    # Each is looked up when it is read: if a release of torch lacks one, only that is unreadable.
    state = {setting: _read(partial(_of_torch, path)) for setting, path in _OF_TORCH.items()}
    state |= {setting: _read(reader) for setting, reader in _READERS.items()}
    state["environment variable"] = {
        name: value for name, value in os.environ.items() if name not in SET_BY_LIBRARIES
    }
    # An entry that a module adds again when it is imported again changes nothing.
    state["entry of sys.path"] = {
        entry: "present" for entry in sys.path if not os.fsdecode(entry).endswith(VENDORED)
    }
    return state


def _read(reader: Callable[[], object]) -> object:
    try:
        return reader()
    # The directory is gone, two APIs set one flag, or this release of torch lacks the flag.
    except (AttributeError, OSError, RuntimeError) as error:
        return f"unreadable: {error}"


def _of_torch(path: str) -> object:
    value = attrgetter(path)(torch)
    return value() if callable(value) else value


def _accelerator(name: str) -> object:
    """Return the accelerator's current device or stream; "none" if it has not started."""
    return next((getattr(module, name)() for _, module in started()), "none")


def _handler_name(handler: object) -> str:
    """Return the name of a signal's handler; one of torch's own only watches a loader's workers."""
    if str(getattr(handler, "__module__", "")).startswith("torch."):
        return signal.SIG_DFL.name
    return handler.name if isinstance(handler, signal.Handlers) else _name(handler)


def _name(handler: object) -> str:
    return str(getattr(handler, "__qualname__", handler))


def _groups_named_by_ranks() -> dict[str, str]:
    """Return named process groups, if a later group of that name would find their old store keys.

    A later group of such a name would read the addresses of the earlier one. Names of other groups
    are numbers, which do not come again.
    """
    if not dist.is_initialized() or hasattr(
        dist.distributed_c10d._get_default_store(), "list_keys"
    ):
        return {}
    names = process_groups().pg_names.values()
    return {name: "present" for name in names if not name.isdecimal() and name != "default_pg"}


def _prints_for_torch(action: str, message: Any, category: Any, module: Any, line: int) -> bool:
    """Return whether a filter only decides which warnings of torch's own modules are printed.

    Packages add such filters when they are imported. Code of a later job computes the same with
    them, unless they make an error of a warning.
    """
    pattern = str(getattr(module, "pattern", module))
    return action != "error" and _MODULE_OF_TORCH.match(pattern) is not None


def _filter(action: str, message: Any, category: Any, module: Any, line: int) -> str:
    def text(pattern: Any) -> str:
        return "" if pattern is None else str(getattr(pattern, "pattern", pattern))

    return f"{action}:{text(message)}:{category.__name__}:{text(module)}:{line}"
