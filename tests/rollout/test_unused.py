"""A session that compares no scores does not pay for what compares them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CELL = """
import sys

import pytest
from pytest_precision import layouts, workloads

@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"])
def test_cell(parity):
    parity.check(layouts.ddp, layouts.fsdp2, workload=workloads.mlp)

def test_nothing_of_rollouts_is_imported():
    names = ("pytest_precision.rollout", "pytest_precision.recipes")
    assert "pytest_precision.check.parity" in sys.modules
    assert [name for name in sys.modules if name.startswith(names)] == []
"""


def test_a_session_without_scores_imports_nothing_of_rollouts(tmp_path: Path) -> None:
    """Neither where it is collected, nor for a cell that passes."""
    (tmp_path / "test_cell.py").write_text(CELL, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--precision-matrix", "-q", str(tmp_path)]
    session = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert session.returncode == 0, session.stdout
    assert "2 passed" in session.stdout
