"""--precision-te: where layouts that use Transformer Engine run, skip, or are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_precision.check.te_support import refuse_stand_in, skip_without
from pytest_precision.options import Settings
from pytest_precision.plugin.cell_counts import announced
from pytest_precision.te import stand_in

SPEC = SimpleNamespace(submodule_search_locations=[])
"""What is found of a package that is installed."""


@pytest.fixture
def with_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel and what it imports, whatever is installed here."""
    monkeypatch.setattr(stand_in, "version", lambda name: "2.20.2")
    monkeypatch.setattr(
        stand_in, "find_spec", lambda name: None if name == stand_in.MODULE else SPEC
    )


def skipped(settings: Settings, device: str = "cpu") -> str:
    """Return the reason with which a test is skipped; empty if it runs."""
    try:
        skip_without(settings, device)
    except pytest.skip.Exception as skip:
        return str(skip)
    return ""


@pytest.mark.usefixtures("with_wheel")
def test_cells_run_where_the_stand_in_can() -> None:
    """By default and if it is asked for, which the line above the tests repeats."""
    assert skipped(Settings()) == skipped(Settings(te="cpu")) == ""
    assert announced(Settings()) == []
    assert announced(Settings(te="cpu")) == ["Transformer Engine on the CPU"]
    refuse_stand_in(Settings(te="cpu"))


@pytest.mark.usefixtures("without_wheel")
def test_cells_are_skipped_with_the_command_that_installs_what_is_missing() -> None:
    """By default; if the stand-in was asked for, the session ends with a usage error."""
    assert "got none installed; pip install 'pytest-precision[te-cpu]'" in skipped(Settings())
    with pytest.raises(pytest.UsageError, match=r"--precision-te=cpu: expected Transformer Engine"):
        refuse_stand_in(Settings(te="cpu"))


@pytest.mark.usefixtures("with_wheel")
def test_it_can_be_turned_off() -> None:
    """Cells on the CPU are then skipped, those on GPUs are not."""
    assert "--precision-te=off; use --precision-te=auto" in skipped(Settings(te="off"))
    assert skipped(Settings(te="off"), "cuda") == ""
    assert announced(Settings(te="off")) == ["no Transformer Engine on the CPU"]


@pytest.mark.usefixtures("with_wheel")
def test_it_never_runs_in_the_process_of_pytest() -> None:
    """What it patches cannot be put back, so inline ranks cannot have it."""
    assert "inline; use --precision-ranks=reuse or fresh" in skipped(Settings(ranks="inline"))


@pytest.mark.usefixtures("with_wheel")
def test_the_stand_in_and_a_gpu_exclude_each_other() -> None:
    """On the command line, before anything runs."""
    with pytest.raises(pytest.UsageError, match="ranks on the CPU but got --precision-device=cuda"):
        refuse_stand_in(Settings(te="cpu", device="cuda"))


@pytest.mark.parametrize(
    ("version", "specs", "message"),
    [
        ("2.19", {}, "expected Transformer Engine 2.20 but got 2.19"),
        ("2.21.0", {}, "expected Transformer Engine 2.20 but got 2.21.0"),
        ("2.20.1", {"transformer_engine_torch": 1}, "no transformer_engine_torch, whose place"),
        ("2.20.1", {"einops": None}, "which Transformer Engine imports, but got no einops"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, version: str, specs: dict[str, Any], message: str
) -> None:
    """Another release, the compiled module itself, and an incomplete environment."""
    found = {stand_in.MODULE: None} | specs
    monkeypatch.setattr(stand_in, "version", lambda name: version)
    monkeypatch.setattr(stand_in, "find_spec", lambda name: found.get(name, SPEC))
    assert message in stand_in.refusal()


@pytest.mark.parametrize("folder", [".", "wheel_lib"])
def test_the_compiled_module_is_found_where_wheels_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    """In the package, or in a folder of it from which Transformer Engine loads it by itself."""
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(stand_in, "version", lambda name: "2.20.2")
    monkeypatch.setattr(stand_in, "find_spec", {"transformer_engine": package}.get)
    (tmp_path / folder).mkdir(exist_ok=True)
    assert not stand_in.has_compiled_module()
    (tmp_path / folder / "transformer_engine_torch.cpython-312-x86_64-linux-gnu.so").touch()
    assert "no transformer_engine_torch, whose place" in stand_in.refusal()


@pytest.mark.usefixtures("with_wheel")
def test_a_process_that_has_transformer_engine_or_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is patched then."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    device = torch.device
    with pytest.raises(RuntimeError, match="expected a machine without a GPU but got a GPU"):
        stand_in.install()
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    with pytest.raises(RuntimeError, match=r"one that has; call te\.install\(\) before"):
        stand_in.install()
    assert torch.device is device
    stand_in.install_without_gpu()  # on a GPU there is nothing to do
    assert stand_in.running() == ""


@pytest.mark.usefixtures("with_wheel")
def test_a_layout_that_is_called_in_pytests_own_process_is_refused() -> None:
    """All tests after it would have a torch that calls the CPU `cuda`."""
    device = torch.device
    with pytest.raises(RuntimeError, match="but got pytest's own process; run this by parity"):
        stand_in.install_without_gpu()
    assert torch.device is device
