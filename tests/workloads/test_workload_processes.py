"""What a process of its own does with the workloads: what it imports, and what it computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from workload_measures import fingerprint

from pytest_precision import workloads

TOLD = """
import sys
from pytest_precision import workloads
workloads.Workload; dir(workloads)
print("torch" in sys.modules)
from pytest_precision.workloads import gpt
print("torch" in sys.modules, gpt.__name__)
from workload_measures import fingerprint
for name in ("mlp", "gpt", "moe"):
    print(fingerprint(getattr(workloads, name)()))
"""


# One interpreter tells of both, in this order: the fingerprints need torch.
@pytest.fixture(scope="module")
def told() -> list[str]:
    """What a new interpreter with another hash seed says, line by line."""
    path = os.pathsep.join([str(Path(__file__).parent), os.getcwd(), *filter(None, sys.path)])
    process = subprocess.run(
        [sys.executable, "-c", TOLD],
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "5", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.slow
def test_import_is_light(told: list[str]) -> None:
    """Importing the workloads and the base class does not import torch; using a name does."""
    assert told[:2] == ["False", "True Gpt"]


@pytest.mark.slow
def test_other_processes_compute_the_same_bits(told: list[str]) -> None:
    """Data, losses and gradients are those of every other process."""
    here = [fingerprint(make()) for make in (workloads.mlp, workloads.gpt, workloads.moe)]
    assert told[2:] == here
