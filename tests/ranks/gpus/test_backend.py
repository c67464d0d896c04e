"""Backends: what is taken on which machine, and what is said about it."""

from __future__ import annotations

import sys

import pytest
import torch

from pytest_precision import BackendError
from pytest_precision.matrix.precisions import PRECISIONS, Precision, Recipe
from pytest_precision.ranks.gpus import backend
from pytest_precision.ranks.gpus.backend import Machine, choose, decide

ADA, HOPPER, BLACKWELL, DESKTOP = (8, 9), (9, 0), (10, 0), (12, 0)

TAKEN = {
    "fp8_delayed": {(8, 6): False, ADA: True, HOPPER: True, BLACKWELL: True, DESKTOP: True},
    "fp8_current": {(8, 6): False, ADA: True, HOPPER: True, BLACKWELL: True, DESKTOP: True},
    "fp8_block": {(8, 6): False, ADA: False, HOPPER: True, BLACKWELL: True, DESKTOP: True},
    "mxfp8": {(8, 6): False, ADA: False, HOPPER: False, BLACKWELL: True, DESKTOP: False},
    "nvfp4": {(8, 6): False, ADA: False, HOPPER: False, BLACKWELL: True, DESKTOP: True},
}
"""Precision and compute capability to whether Transformer Engine 2.19 has the one on the other."""

RELEASES = [
    ("fp8_current", "2.7.0", HOPPER, False),
    ("fp8_current", "2.8.0", HOPPER, True),
    ("mxfp8", "2.12.0", BLACKWELL, False),
    ("mxfp8", "2.13.0", BLACKWELL, True),
    ("nvfp4", "2.13.0", BLACKWELL, False),
    ("nvfp4", "2.14.1", BLACKWELL, True),
    ("nvfp4", "2.18.0", DESKTOP, False),
    ("nvfp4", "2.19.0.dev0+b447576", DESKTOP, True),
]
"""Precision, version and compute capability to whether the kernels make the emulation's numbers."""

each_precision = pytest.mark.parametrize("precision", TAKEN)


def test_all_native_precisions_are_known() -> None:
    """And no others: there is nothing to choose for them."""
    assert {name for name, precision in PRECISIONS.items() if precision.native} == set(TAKEN)


@each_precision
def test_auto(precision: str) -> None:
    """Native where the GPU has the format; otherwise emulated, and it is said what was found."""
    for capability, native in TAKEN[precision].items():
        choice = choose("auto", precision, Machine("2.19", capability))
        assert choice.backend == ("native" if native else "emulated"), capability
        assert "Transformer Engine 2.19" in choice.reason
        assert "compute capability {}.{}".format(*capability) in choice.reason


@each_precision
def test_native(precision: str) -> None:
    """Native, or a refusal: never quietly something else."""
    for capability, native in TAKEN[precision].items():
        if native:
            choice = choose("native", precision, Machine("2.19", capability))
            assert choice.backend == "native", capability
        else:
            with pytest.raises(BackendError):
                choose("native", precision, Machine("2.19", capability))


@pytest.mark.parametrize(("precision", "version", "capability", "native"), RELEASES)
def test_releases(precision: str, version: str, capability: tuple[int, int], native: bool) -> None:
    """Kernels of older releases round otherwise, or stop the GPU: they are not taken."""
    choice = choose("auto", precision, Machine(version, capability))
    assert choice.backend == ("native" if native else "emulated")
    assert f"Transformer Engine {version}" in choice.reason


def test_emulated_is_never_anything_else() -> None:
    """However much the machine can do."""
    assert choose("emulated", "nvfp4", Machine("2.19", BLACKWELL)).backend == "emulated"


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (Machine("2.19", None), "Transformer Engine 2.19 and ranks on the CPU"),
        (Machine(None, BLACKWELL), "no Transformer Engine and compute capability 10.0"),
        (
            Machine(None, BLACKWELL, "OSError: libcudnn.so"),
            "a Transformer Engine that cannot be imported (OSError: libcudnn.so) and compute "
            "capability 10.0",
        ),
    ],
)
def test_what_is_missing(machine: Machine, found: str) -> None:
    """With `auto` it is the reason, with `native` the refusal says it."""
    reason = choose("auto", "mxfp8", machine).reason
    assert reason.endswith(f"; here is {found}")
    with pytest.raises(BackendError) as refusal:
        choose("native", "mxfp8", machine)
    assert f"but got {found};" in str(refusal.value)


def test_refusal() -> None:
    """It names the format, the release and capability that it needs, those found, a way on."""
    with pytest.raises(BackendError) as refusal:
        choose("native", "nvfp4", Machine("2.19", HOPPER))
    assert str(refusal.value) == (
        "expected Transformer Engine 2.14 or later and a GPU of compute capability 10.0 or higher, "
        "below 11.0, or Transformer Engine 2.19 or later and a GPU of compute capability 11.0 or "
        "higher for nvfp4 with --precision-backend=native but got Transformer Engine 2.19 and "
        "compute capability 9.0; use --precision-backend=auto or emulated, or leave nvfp4 out of "
        "the matrix"
    )


def test_a_rank_on_the_cpu_emulates() -> None:
    """Whatever is installed, without looking for a GPU."""
    assert decide("auto", "mxfp8", "cpu").backend == "emulated"
    with pytest.raises(BackendError, match="ranks on the CPU"):
        decide("native", "mxfp8", "cpu")


def test_an_engine_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is none, and the reason is told: on a GPU that has the format, a rank tries."""
    monkeypatch.setattr(backend, "installed_version", lambda: "2.19")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: BLACKWELL)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", None)
    choice = decide("auto", "mxfp8", "cuda")
    assert choice.backend == "emulated"
    assert "cannot be imported (ModuleNotFoundError: " in choice.reason
    with pytest.raises(BackendError, match="cannot be imported"):
        decide("native", "mxfp8", "cuda")


def test_a_precision_that_no_release_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is emulated, and the reason is told; asked for, it is refused."""
    row = Precision("bf16", Recipe("mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3"))
    monkeypatch.setitem(PRECISIONS, "mine", row)
    choice = choose("auto", "mine", Machine("2.19", BLACKWELL))
    assert str(choice).startswith(
        "emulated: native mine needs a quantizer that no release of Transformer Engine has; here is"
    )
    with pytest.raises(
        BackendError, match=r"expected a quantizer that no release .* for mine with"
    ):
        choose("native", "mine", Machine("2.19", BLACKWELL))
