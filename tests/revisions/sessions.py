"""Sessions: pytest in a user's repository, compared with another commit or installation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repository import Repository
from written import read_report

LAYOUTS = """
import torch
from pytest_precision import Engine
from helpers import decayed

OWN, SHARED = {own}, {shared}


def made(workload, cell, beta):
    model = workload.model(cell)
    adam = torch.optim.AdamW(workload.groups(model), betas=(0.9, decayed(beta)))
    return Engine(workload, cell, model, adam)


def own(workload, cell):
    return made(workload, cell, OWN)


def shared(workload, cell):
    return made(workload, cell, SHARED)


def shared_too(workload, cell):
    return made(workload, cell, SHARED)


def nine(workload, cell):
    return made(workload, cell, 0.9)


def eight(workload, cell):
    return made(workload, cell, 0.8)


def torn(workload, cell, by=0.5):
    engine = nine(workload, cell)
    if torch.distributed.get_rank():
        with torch.no_grad():
            next(engine.model.parameters()).add_(by)
    return engine


def torn_further(workload, cell):
    return torn(workload, cell, SHARED)
"""

MORE = """
from mine.layouts import made


def {name}(workload, cell):
    return made(workload, cell, 0.9)
"""

TEST = """
import pytest
from pytest_precision import unchecked, workloads
from {ours} import {candidate} as candidate
from {theirs} import {reference} as reference


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train2"]{ranks})
def test_{name}(cell, parity):
    other = unchecked(reason="other betas than the workload's")
    parity.check(candidate, reference, workload=workloads.mlp, oracle=other)
"""


def cell_of(name: str, candidate: str, reference: str, ranks: int = 1) -> str:
    """Return a file with a matrix test.

    Args:
        name: of the test.
        candidate: `module:function`; of `mine.layouts` unless it names a module.
        reference: likewise.
        ranks: how many each side has.
    """
    ours, theirs = (
        one.split(":") if ":" in one else ("mine.layouts", one) for one in (candidate, reference)
    )
    return TEST.format(
        name=name,
        ours=ours[0],
        theirs=theirs[0],
        candidate=ours[1],
        reference=theirs[1],
        ranks="" if ranks == 1 else f", world_size=[{ranks}]",
    )


def command(*options: str) -> list[str]:
    """Return the command that runs the cells of a repository."""
    words = [sys.executable, "-m", "pytest", "--precision-matrix", "-p", "no:cacheprovider"]
    return [*words, "--precision-device=cpu", "--precision-report=report", *options]


def run(
    repository: Repository, *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the cells of a repository."""
    environment = os.environ | variables
    words = command(*options)
    return subprocess.run(
        words, cwd=repository.root, env=environment, capture_output=True, text=True
    )


def run_here(repository: Repository, pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run a session in this process: one that ends before it imports anything or starts a rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository.root)
        return pytester.runpytest_inprocess(*command(*options)[3:])


def cells(repository: Repository) -> dict[str, dict[str, Any]]:
    """Return the name of each test to its entry in the report of the last session."""
    found = read_report(repository.root / "report" / "report.json")["cells"]
    return {Path(cell["nodeid"].partition("::")[0]).stem: cell for cell in found}
