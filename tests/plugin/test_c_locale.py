"""Where the locale has no UTF-8, all files are written and read, and all text is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MATRIX = '''\
"""Größen."""
import pytest
from pytest_precision import layouts, workloads

cells = pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], foreach=[True])

@cells
def test_same(cell, parity):
    parity.check(layouts.adamw, layouts.adamw, workload=workloads.mlp,
                 reference_cell=cell.replace(foreach=False))

def largest():
    raise ValueError("größer × 2")

def made(cell, workload):
    largest()

@cells
def test_raises(parity):
    parity.check(made, layouts.adamw, workload=workloads.mlp)
'''

SCRIPT = """\
import torch
grün = torch.nn.Linear(3, 2)
sgd = torch.optim.SGD(grün.parameters(), lr=0.1)
for _ in range(9):
    grün(torch.ones(2, 3)).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""

RUNS = """\
import sys
import pytest
from pytest_precision.__main__ import main

assert sys.stdout.encoding.lower() != "utf-8", sys.stdout.encoding
options = ["--precision-matrix", "--precision-ranks=inline", "-p", "no:cacheprovider", "-q"]
for mode in ("update", "check"):
    baseline = f"--precision-baseline={mode}"
    assert pytest.main([*options, baseline, "--precision-report=report"]) == 1
for words in (
    "record --out mine --steps 1 --lines -- größe.py",
    "export mine --out größe.safetensors",
    "import größe.safetensors --out theirs",
    "compare theirs mine",
    "report html report",
    "report merge report --out größe",
    "report summary report",
    "report annotations report",
    "report sarif report",
    "init größe",
):
    # As the words of a command line arrive: bytes that the locale does not know.
    given = words.encode().decode("ascii", "surrogateescape").split()
    assert main(given) == 0, given
"""


def c_locale(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run Python in the C locale, which this Python does not read as UTF-8."""
    names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONIOENCODING"} | names
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, timeout=250
    )


def test_a_session_and_commands_in_the_c_locale(tmp_path: Path) -> None:
    """Report, page and baselines are UTF-8, and are read again; commands print escapes."""
    (tmp_path / "test_it.py").write_text(MATRIX, encoding="utf-8")
    (tmp_path / "größe.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "größe").mkdir()
    (tmp_path / "runs.py").write_text(RUNS, encoding="utf-8")
    done = c_locale(tmp_path, "runs.py")
    said = done.stdout.decode("ascii")
    assert done.returncode == 0, said + done.stderr.decode()
    assert "precision: baselines: 1 as kept" in said
    assert "could not be written" not in said
    assert "größer × 2" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.glob("größe*")} == {
        "größe",
        "größe.py",
        "größe.safetensors",
        "größe.safetensors.json",
    }
    made = ["report.html", "report.json", "test_precision.py"]
    assert sorted(path.name for path in (tmp_path / "größe").iterdir()) == made
