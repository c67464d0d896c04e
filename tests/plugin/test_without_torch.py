"""Start-up and collection leave torch alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import sys

def pytest_terminal_summary(terminalreporter):
    heavy = {"torch", "numpy", "hypothesis", "sympy", "xxhash"} & set(sys.modules)
    terminalreporter.write_line(f"imported: {sorted(heavy)}")
    of_cells = {"multiprocessing.forkserver", "pytest_precision.report.terminal"} & set(sys.modules)
    terminalreporter.write_line(f"of cells: {sorted(of_cells)}")
"""

SUITE = """
import pytest
from pytest_precision import layouts, workloads

@pytest.mark.precision_matrix(precision=["bf16", "fp32"], world_size=[1, 2])
def test_a(cell):
    layouts.adamw, layouts.fsdp2, workloads.mlp
    import pytest_precision.check.case
"""

LIGHT = (
    "",
    "--collect-only --precision-matrix",
    "--collect-only --precision-coverage=pairwise --precision-select=world_size=1",
    "--precision-matrix -k nothing",
)
"""Options of sessions that run no cell."""

RUNS_CELLS = "--precision-matrix -k w1"

SESSIONS = """
import sys
import pytest

for options in sys.argv[1:]:
    status = pytest.main(["-p", "no:cacheprovider", *options.split()])
    print(f"status of {options!r}: {int(status)}")
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each session writes: all run in one process, the one that imports torch last.

    No plugin is loaded but this one.
    """
    folder = tmp_path_factory.mktemp("suite")
    for name, text in {"conftest": CONFTEST, "test_a": SUITE, "sessions": SESSIONS}.items():
        (folder / f"{name}.py").write_text(text)
    kept = {name: v for name, v in os.environ.items() if not name.startswith("PRECISION_")}
    kept |= {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "pytest_precision.plugin.hooks",
    }
    kept |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_ADDOPTS": ""}
    sessions = (*LIGHT, RUNS_CELLS)
    command = [sys.executable, "sessions.py", *sessions]
    ended = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found, left = {}, ended.stdout
    for options in sessions:
        found[options], ended_as, left = left.partition(f"status of {options!r}: ")
        assert ended_as, ended.stdout
        found[options] += ended_as + left.partition("\n")[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("options", LIGHT)
def test_nothing_heavy_is_imported(said: dict[str, str], options: str) -> None:
    """Neither skipped cells nor collected ones import torch or anything else that takes long."""
    *lines, status = said[options].splitlines()
    assert int(status[-1]) in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "imported: []" in lines


@pytest.mark.slow
def test_a_session_without_cells_imports_neither_processes_nor_the_report(
    said: dict[str, str],
) -> None:
    """Every pytest run of a project that has the package installed would wait for them."""
    assert "of cells: []" in said[""].splitlines()


@pytest.mark.slow
def test_a_cell_that_runs_imports_torch_alone(said: dict[str, str]) -> None:
    """To name layouts and to judge needs no DTensor, with which sympy comes; ranks import it."""
    lines = said[RUNS_CELLS].splitlines()
    assert any("2 passed, 2 deselected" in line for line in lines)
    assert "imported: ['numpy', 'torch', 'xxhash']" in lines
