"""Nothing that one side of a check does reaches the other one, or another test, in any mode."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import launches
import pytest

PATCHES = """
import torch
import torch.nn.functional as F

from pytest_precision import Engine, layouts

CALLS = 0


def gelu(x):
    return F.silu(x)


def forward(self, x):
    return F.linear(x, 2 * self.weight, self.bias)


def patches(workload, cell):
    F.gelu = gelu
    torch.nn.Linear.forward = forward
    return layouts.adamw(workload, cell)


def counts(workload, cell):
    global CALLS
    CALLS += 1
    engine = layouts.adamw(workload, cell)
    if CALLS == 1:
        engine.optimizer.param_groups[0]["lr"] *= 2
    return engine


def code():
    return F.gelu.__name__, torch.nn.Linear.forward.__module__, CALLS
"""

SUITE = """
import patches
import pytest
from pytest_precision import layouts, ulp, workloads

@pytest.mark.precision_matrix(sequence=["train1", "train2"], world_size=[2])
@pytest.mark.parametrize("layout", [patches.patches, patches.counts])
def test_differs(parity, layout):
    parity.check(layout, layouts.adamw, workload=workloads.mlp, criterion=ulp(1))


@pytest.mark.precision_matrix(sequence=["train1"], world_size=[2])
def test_agrees(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


@pytest.mark.world_size(2)
def test_code(ranks):
    assert ranks.run(patches.code) == [("gelu", "torch.nn.modules.linear", 0)] * 2
"""


@pytest.mark.parametrize("mode", ["plain", "xdist", "torchrun", "Slurm"])
def test_a_layout_that_changes_its_process_changes_no_verdict(tmp_path: Path, mode: str) -> None:
    """One that patches torch, or counts its calls, fails in every cell, and tests after it pass."""
    (tmp_path / "patches.py").write_text(PATCHES)
    (tmp_path / "test_suite.py").write_text(SUITE)
    options = "--precision-matrix", "--junit-xml=junit.xml", "-p", "no:cacheprovider"
    ended = launches.run(tmp_path, mode, *options)
    cases = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    failed = {case.get("name"): case.find("failure") is not None for case in cases}
    assert len(failed) == 6
    assert failed == {name: "differs" in name for name in failed}
    for change in ("gelu was replaced by patches:gelu", "patches.CALLS was 0, is 1"):
        assert change in ended.output
    assert "torch.nn.Linear.forward was replaced by patches:forward" in ended.output
