"""Processes of a launch hash strings differently; ranks that are forked from one server do not."""

from __future__ import annotations

from pathlib import Path

import launches

SUITE = """
from functools import partial

import pytest

from pytest_precision import layouts, workloads

SCALED = {"main_params_dtype": "fp16", "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16"}


@pytest.mark.precision_matrix(
    precision=["bf16"], primary_weight=["bf16"], sequence=["train-save-load"], world_size=[2]
)
def test_checkpoint(parity):
    layout = partial(layouts.distributed_optimizer, **SCALED)
    parity.check(partial(layout, overlap_grad_reduce=True), layout, workload=workloads.mlp)


def hash_of_a_name():
    return hash("exp_avg")


@pytest.mark.world_size(2)
def test_hashes_differ(ranks):
    assert len(set(ranks.run(hash_of_a_name))) == 2
"""


def test_collectives_come_in_one_order(tmp_path: Path) -> None:
    """A checkpoint gathers six tensors of each parameter, which no set may order."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    ended = launches.run(tmp_path, "torchrun on two nodes", "--precision-matrix")
    assert ended.statuses == [0, 0], ended.output
    assert "2 passed" in ended.output
