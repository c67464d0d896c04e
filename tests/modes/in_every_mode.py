"""The suite that every mode runs: outcomes, layouts that change their process, hashes of names."""

OUTCOMES = """
import os

import pytest

from pytest_precision import layouts, workloads


def sum_of_ranks(weight):
    import torch
    import torch.distributed as dist

    total = torch.tensor(dist.get_rank() * weight)
    dist.all_reduce(total)
    return total.item()


def raises():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise KeyError("on rank 1")
    dist.barrier()


def dies():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def dies_as_a_layout(workload, cell):
    os._exit(3)


def variables():
    of_launchers = ("TORCHELASTIC_", "MASTER_", "SLURM_STEP_", "SLURM_PROCID")
    left = [name for name in os.environ if name.startswith(of_launchers)]
    return os.environ["WORLD_SIZE"], os.environ.get("PLANTED"), left


@pytest.mark.world_size(2)
def test_passes(ranks):
    assert ranks.run(sum_of_ranks, weight=3) == [3, 3]


@pytest.mark.world_size(2)
def test_fails(ranks):
    assert ranks.run(sum_of_ranks, 1) == [1, 2]


@pytest.mark.world_size(2)
def test_raises(ranks):
    ranks.run(raises)


@pytest.mark.world_size(2)
def test_dies(ranks):
    ranks.run(dies)


@pytest.mark.world_size(2)
def test_after_all_that(ranks, monkeypatch):
    monkeypatch.setenv("PLANTED", "by the test")
    assert ranks.run(variables) == [("2", "by the test", [])] * 2


@pytest.mark.xfail(reason="known")
@pytest.mark.world_size(2)
def test_fails_as_expected(ranks):
    ranks.run(raises)


@pytest.mark.world_size(3)
def test_on_three(ranks):
    assert ranks.run(sum_of_ranks, 1) == [3, 3, 3]


@pytest.mark.precision_matrix(sequence=["train-save-restart@2-train"], world_size=[1, 2])
def test_parity(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


@pytest.mark.precision_matrix(sequence=["train1"], world_size=[2])
def test_has_no_verdict(parity):
    parity.check(dies_as_a_layout, layouts.adamw, workload=workloads.mlp)


def test_without_ranks(tmp_path):
    pass
"""

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

ISOLATION = """
import patches
import pytest
from pytest_precision import layouts, ulp, workloads

@pytest.mark.precision_matrix(sequence=["train1"], world_size=[2])
def test_differs(parity):
    parity.check(patches.patches, layouts.adamw, workload=workloads.mlp, criterion=ulp(1))


# The second cell would agree on ranks that have counted before.
@pytest.mark.precision_matrix(sequence=["train1", "train2"], world_size=[2], lines="off")
def test_differs_once(parity):
    parity.check(patches.counts, layouts.adamw, workload=workloads.mlp, criterion=ulp(1))


@pytest.mark.precision_matrix(sequence=["train1"], world_size=[2])
def test_agrees(parity):
    parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)


@pytest.mark.world_size(2)
def test_code(ranks):
    assert ranks.run(patches.code) == [("gelu", "torch.nn.modules.linear", 0)] * 2
"""

HASHES = """
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
def test_hashes(ranks, record_property):
    record_property("different", len(set(ranks.run(hash_of_a_name))))
"""

FILES = {
    "test_outcomes.py": OUTCOMES,
    "patches.py": PATCHES,
    "test_isolation.py": ISOLATION,
    "test_hashes.py": HASHES,
}
"""Each file of the suite with its text."""
