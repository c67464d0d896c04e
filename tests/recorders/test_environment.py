"""What decides about the bits of a run is kept with it."""

from __future__ import annotations

import pytest
import torch

from pytest_precision import Cell
from pytest_precision.ranks.gpus import own_device
from pytest_precision.ranks.gpus.backend import installed_version
from pytest_precision.recorders.run_environment import environment_of


@pytest.mark.parametrize(
    "name",
    [
        *("CUDNN_DETERMINISTIC", "FLASH_ATTENTION_DETERMINISTIC", "NVIDIA_TF32_OVERRIDE"),
        *("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_FX_CACHE"),
        *("CUDA_LAUNCH_BLOCKING", "TRITON_F32_DEFAULT"),
    ],
)
def test_a_variable_that_chooses_kernels_is_kept(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Two recordings that differ in it say so."""
    monkeypatch.setenv(name, "1")
    assert environment_of(Cell())[name] == "1"


@pytest.mark.parametrize("name", ["TORCH_HOME", "TRITON_CACHE_DIR"])
def test_a_place_of_files_is_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each machine and each session has others."""
    monkeypatch.setenv(name, "/somewhere")
    assert name not in environment_of(Cell())


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says on a GPU."""
    says = {
        "is_initialized": True,
        "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_capability": (9, 0),
        "device_count": 1,  # as a rank sees them
    }
    for name, value in says.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 3))


@pytest.mark.parametrize(("caller", "told"), [(8, "8"), (0, "1")])
def test_a_gpu_is_told_with_its_libraries(
    monkeypatch: pytest.MonkeyPatch, h100: None, caller: int, told: str
) -> None:
    """A run on another card, driver or library may add in another order; a script has no caller."""
    monkeypatch.setattr(own_device, "_among", caller)
    found = environment_of(Cell())
    assert (found["gpu"], found["gpus"]) == ("NVIDIA H100 80GB HBM3", told)
    assert (found["capability"], found["nccl"]) == ("9.0", "2.28.3")
    assert {"cuda", "cudnn", "driver"} <= set(found)
    assert found.get("transformer_engine") == installed_version()


def test_another_cudnn_than_that_of_torch_is_told(
    monkeypatch: pytest.MonkeyPatch, h100: None
) -> None:
    """Torch refuses to say the version of one that Transformer Engine has loaded before it."""

    def refuse() -> int:
        raise RuntimeError(
            "cuDNN version incompatibility: PyTorch was compiled  against (9, 19, 0) but found "
            "runtime version (9, 14, 0). PyTorch already comes bundled with cuDNN."
        )

    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    assert environment_of(Cell())["cudnn"] == (
        "cuDNN version incompatibility: PyTorch was compiled against (9, 19, 0) but found runtime "
        "version (9, 14, 0)"
    )


def test_a_run_on_the_cpu_has_no_gpu() -> None:
    """Also on a machine that has one."""
    assert "gpu" not in environment_of(Cell())
