"""Installs a CPU stand-in for Transformer Engine's compiled module, or says why it cannot."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.version import Version

from pytest_precision.errors import expected_but_got
from pytest_precision.te.names import NAMES

MODULE = "transformer_engine_torch"

WHAT_TO_INSTALL = "pip install 'pytest-precision[te-cpu]'"
"""The command that installs all that the stand-in needs beside torch."""

REQUIRED = ("pydantic", "einops", "packaging", "onnxscript")
"""What Transformer Engine's Python layer imports, and its wheel does not require."""

VARIABLES = {
    # Without it, Transformer Engine looks for shared objects, and refuses its own wheel.
    "NVTE_PROJECT_BUILDING": "1",
    "NVTE_FLASH_ATTN": "0",
    "NVTE_FUSED_ATTN": "0",
    "NVTE_UNFUSED_ATTN": "1",
    # Its helpers are compiled otherwise, which takes longer than they do.
    "NVTE_TORCH_COMPILE": "0",
    "TORCHDYNAMO_DISABLE": "1",
}
"""Variables that Transformer Engine and torch read when they are imported."""

CHANGES = (
    "torch*",
    "environment variable NVTE_*",
    "environment variable TORCHDYNAMO_DISABLE",
    "environment variable TF_CPP_MIN_LOG_LEVEL",  # set by JAX, where that is installed, as the next
    "environment variable TPU_SKIP_MDS_QUERY",
    "warnings filter *:DeprecationWarning:transformer:*",
)
"""Patterns of the global state that the stand-in changes until the process ends."""


def refusal() -> str:
    """Return why Transformer Engine's stand-in cannot run in this environment; empty if it can.

    Needs no torch.
    """
    try:
        installed = version("transformer-engine")
    except PackageNotFoundError:
        return expected_but_got("Transformer Engine's wheel", "none installed", WHAT_TO_INSTALL)
    known_releases = ", ".join(".".join(map(str, release)) for release in NAMES)
    if _release_of(installed) not in NAMES:
        return expected_but_got(f"Transformer Engine {known_releases}", installed, WHAT_TO_INSTALL)
    if has_compiled_module():
        return expected_but_got(
            f"no {MODULE}, whose place the stand-in takes,",
            "one that is installed",
            "run on a GPU with it, or use an environment without it",
        )
    missing = [name for name in REQUIRED if find_spec(name) is None]
    if missing:
        return expected_but_got(
            f"{', '.join(REQUIRED)}, which Transformer Engine imports,",
            f"no {', '.join(missing)}",
            WHAT_TO_INSTALL,
        )
    return ""


def has_compiled_module() -> bool:
    """Return whether Transformer Engine's compiled module is installed, without importing it.

    PyPI's wheels have it in a folder of the package that is no import path: Transformer Engine
    loads it from there.
    """
    if find_spec(MODULE) is not None:
        return True
    package = find_spec("transformer_engine")
    places = package.submodule_search_locations if package is not None else None
    return any(
        any(folder.glob(f"{MODULE}.*"))
        for place in places or ()
        for folder in (Path(place), Path(place, "wheel_lib"))
    )


def install() -> None:
    """Install Transformer Engine's stand-in in this process for good; a second call does nothing.

    Call it in a process that does nothing else, before Transformer Engine is imported: from then on
    torch calls the CPU `cuda`.

    Raises:
        RuntimeError: the stand-in cannot run here; the message says why.
    """
    if running():
        return
    problem = refusal() or _problem_of_this_process()
    if problem:
        raise RuntimeError(problem)
    os.environ.update({k: os.environ.get(k, v) for k, v in VARIABLES.items()})
    from pytest_precision._torch.distributed import collect_one_by_one
    from pytest_precision.te import apex, cuda, device, nccl, triton

    device.enter()
    cuda.enter()
    nccl.enter()
    triton.enter()
    collect_one_by_one()
    sys.modules.update(apex.modules())
    sys.modules[MODULE] = _StandIn(version("transformer-engine"))
    _import_package()


def install_without_gpu() -> None:
    """Install Transformer Engine's stand-in if this process, a rank, sees no GPU.

    Raises:
        RuntimeError: the stand-in cannot run here, or this is pytest's own process, where it would
            change torch for all tests; the message says why.
    """
    import torch

    if running() or torch.cuda.is_available():
        return
    if multiprocessing.parent_process() is None:
        raise RuntimeError(
            expected_but_got(
                "a process of a rank, since the stand-in changes torch for good,",
                "pytest's own process",
                "run this by parity.check or ranks.run, or call te.install() first",
            )
        )
    install()


def running() -> str:
    """Return which Transformer Engine stand-in is in use, as in "2.20.0 on the CPU"; "" if none."""
    module = sys.modules.get(MODULE)
    return module.stand_in if isinstance(module, _StandIn) else ""


def _import_package() -> None:
    """Import Transformer Engine without loading its shared objects.

    The package loads them while it is imported, by a function of its module `common`, so that
    module comes first.
    """
    spec = find_spec("transformer_engine")
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[spec.name] = module_from_spec(spec)
    common: Any = import_module("transformer_engine.common")
    common.load_framework_extension = lambda framework: None
    spec.loader.exec_module(package)


def _problem_of_this_process() -> str:
    """Return why the stand-in cannot be installed in this process; empty if it can."""
    import torch

    if "transformer_engine" in sys.modules:
        return expected_but_got(
            "a process that has not imported Transformer Engine",
            "one that has",
            "call te.install() before `import transformer_engine`",
        )
    if torch.cuda.is_available():
        return expected_but_got(
            "a machine without a GPU", torch.cuda.get_device_name(), "run on the GPU itself"
        )
    return ""


def _release_of(installed: str) -> tuple[int, int]:
    version_of_wheel = Version(installed)
    return version_of_wheel.major, version_of_wheel.minor


class _StandIn(ModuleType):
    """The stand-in module, with exactly the names that the installed Transformer Engine uses.

    Attributes:
        stand_in: the version of Transformer Engine, which takes milliseconds to find out, as in
            "2.20.0 on the CPU".
    """

    def __init__(self, installed: str) -> None:
        super().__init__(MODULE, "The stand-in for the compiled module, on the CPU.")
        release = _release_of(installed)
        self.stand_in = f"{installed} on the CPU"
        attributes = {**_classes(), **_constants()}
        for name, function in functions().items():
            attributes[name] = _on_the_cpu(function)
        text = ".".join(map(str, release))
        for name in NAMES[release]:
            setattr(self, name, attributes[name] if name in attributes else _refusing(name, text))


def functions() -> dict[str, Callable[..., Any]]:
    """Return the compiled module's functions that the stand-in implements, by name."""
    from pytest_precision.te import (
        activations,
        allocation,
        amaxes,
        aux_loss,
        expert_groups,
        gemm,
        masters,
        norms,
        optimizers,
        permutation,
        quantize,
        rope,
        router,
        rows,
        softmax,
        transposes,
    )

    every = frozenset().union(*NAMES.values())
    areas = (
        *(allocation, amaxes, aux_loss, gemm, expert_groups, masters, norms, optimizers),
        *(permutation, quantize, rope, router, rows, softmax, transposes),
    )
    members = {name: value for area in areas for name, value in vars(area).items() if name in every}
    return {
        name: f for name, f in members.items() if not isinstance(f, type)
    } | activations.FUNCTIONS


def _classes() -> dict[str, Any]:
    from pytest_precision.formats.transformer_engine.kernel_dtypes import DType
    from pytest_precision.te import enums

    defined_names = (
        "FP8BwdTensors FP8FwdTensors FP8TensorMeta NVTEQBHistogramMode NVTERoutingMapFormat "
        "NVTE_Fused_Attn_Backend NVTE_QKV_Format"
    )
    numbered = (
        "CommOverlap CommOverlapHelper CommOverlapP2P CommOverlapType NVTEScalingMode "
        "NVTE_Bias_Type NVTE_Mask_Type NVTE_QKV_Layout NVTE_Softmax_Type"
    )
    classes = {"DType": DType, **{name: getattr(enums, name) for name in defined_names.split()}}
    return classes | {name: enums.named_only(name) for name in numbered.split()}


def _constants() -> dict[str, Any]:
    """Return replacements of the functions that report a GPU's or library's properties."""
    from pytest_precision.te.enums import NVTE_Fused_Attn_Backend

    backend = NVTE_Fused_Attn_Backend.NVTE_No_Backend
    answers = {
        "device_supports_multicast": False,
        "get_cublasLt_version": 130600,
        "get_cudnn_version": 91400,
        "get_fused_attn_backend": (backend, "the CPU has no fused attention"),
        "get_grouped_gemm_setup_workspace_size": 1024,
        "get_num_cublas_streams": 4,
        "get_stream_priority_range": (0, -1),
        "ubuf_built_with_mpi": False,
    }
    return {name: _saying(answer) for name, answer in answers.items()}


def _saying(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _on_the_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to run without autograd, and hidden from torch's function modes."""
    import torch

    from pytest_precision._torch.dispatch import without_functions_seen
    from pytest_precision.te.device import plain

    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), plain(), without_functions_seen():
            return function(*args, **kwargs)

    return compute


def _refusing(name: str, release: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"expected a function of the stand-in for Transformer Engine {release} but got "
            f"{MODULE}.{name}, which it does not compute; use a GPU, or the form without it"
        )

    refuse.__name__ = name
    return refuse
