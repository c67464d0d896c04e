"""Tests of what only a GPU can show; elsewhere each is skipped with the reason.

`GPU_TESTS_DEVICE=cpu` runs those that name no GPU on the CPU, to see that the tests work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_precision import Cell, Parity
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

DEVICE = os.environ.get("GPU_TESTS_DEVICE", "cuda")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this folder, and skip what this machine cannot show."""
    lacking = pytest.mark.skip(reason="expected a CUDA GPU, and torch finds none")
    there = torch.cuda.is_available()
    inside = f"{HERE}{os.sep}"  # parents of thousands of paths take long to make
    for item in items:
        if str(item.path).startswith(inside):
            assert isinstance(item, pytest.Function)
            item.add_marker(pytest.mark.gpu)
            if not there and (DEVICE == "cuda" or "gpus" in item.fixturenames):
                item.add_marker(lacking)


@pytest.fixture
def gpus() -> int:
    """How many GPUs there are; a test that asks for them runs nowhere else."""
    return torch.cuda.device_count()


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable without which no matrix product is deterministic, where tests compute here."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def settings() -> Settings:
    """Two ranks may share a GPU, over gloo, where there is one."""
    return Settings(timeout=120, device=DEVICE, lines="off", ranks_per_device=2)


@pytest.fixture
def checked(resources: Resources, settings: Settings) -> Callable[..., Parity]:
    """The fixture `parity` of a test in a cell on the device, with options of the marker."""

    def make(cell: Cell, **options: object) -> Parity:
        own = replace(settings, **options)
        return Parity("test", cell, own, resources.ranks(own), resources.traces)

    return make


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run pytest on a file, in a process of its own, with arguments of the plugin and an input."""

    def run(text: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--precision-matrix", f"--precision-device={DEVICE}", *arguments]
        surroundings = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=surroundings,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=280,
        )

    return run
