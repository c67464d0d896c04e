"""With pytest-cov, what ranks run counts: bodies of layouts and of scripts, and no file is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

MINE = """\
import torch
from pytest_precision import Engine, script


class Mine(Engine):
    def reduce_grads(self):
        super().reduce_grads()
        self.reduced = True


def mine(workload, cell):
    model = workload.model(cell)
    return Mine(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def train(record):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record():
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@script
def loop(cell, record):
    train(record)


@script
def other_loop(cell, record):
    train(record)


def never():
    return 1
"""

TESTS = """\
import mine
import pytest
from pytest_precision import layouts, workloads


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], world_size=[2])
def test_layouts(parity):
    parity.check(candidate=mine.mine, reference=layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], world_size=[1])
def test_scripts(parity):
    parity.check(candidate=mine.loop, reference=mine.other_loop)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "patch"),
    [((), ""), pytest.param(("-n2",), "patch = subprocess", marks=pytest.mark.nightly)],
    ids=["alone", "workers"],
)
def test_ranks_count(pytester: pytest.Pytester, workers: tuple[str, ...], patch: str) -> None:
    """Only the function that nobody calls is missing, in whichever processes tests run."""
    pytester.makepyfile(mine=MINE, test_mine=TESTS)
    Path(".coveragerc").write_text(f"[run]\n{patch}\n")
    arguments = ("--cov=mine", "--cov-report=term-missing", "--precision-matrix", *workers)
    result = pytester.runpytest_subprocess(*arguments, timeout=200)
    (missing,) = re.findall(r"^mine\.py +\d+ +\d+ +\d+% +(.*)$", result.stdout.str(), re.MULTILINE)
    assert missing == str(MINE.splitlines().index("    return 1") + 1)
    assert [file.name for file in Path.cwd().glob(".coverage.*")] == []
