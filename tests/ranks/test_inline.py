"""`inline`: one rank, which is the calling process."""

from __future__ import annotations

import os

import pytest

from pytest_precision.errors import WorldSizeError
from pytest_precision.ranks import RankPool


class PlantedError(Exception):
    pass


PLANTED = PlantedError("the very object")


def state():
    import torch
    import torch.distributed as dist

    return {
        "ranks": (dist.get_rank(), dist.get_world_size(), dist.get_backend()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "dtype": torch.get_default_dtype(),
        "drawn": torch.rand(1).item(),
        "pid": os.getpid(),
    }


def fail():
    raise PLANTED


@pytest.fixture
def inline() -> RankPool:
    return RankPool("inline", timeout=1)


def test_the_job_runs_here_in_a_group_of_one(inline):
    """Same process, same collectives, same state as on any rank; no group is left behind."""
    import torch.distributed as dist

    [found] = inline.run(1, state)
    assert found["pid"] == os.getpid()
    assert found["ranks"] == (0, 1, "gloo")
    assert found["threads"] == 1
    assert found["deterministic"]
    assert not dist.is_initialized()
    assert inline.run(1, state) == [found]


def test_the_callers_state_comes_back(inline):
    """Inline must not change what the next test of the caller sees."""
    import torch

    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    torch.rand(1)
    torch.set_default_dtype(torch.float64)
    try:
        inline.run(1, state)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.rand(1) == expected[1]


def variables():
    return {name: os.environ.get(name) for name in ("CUBLAS_WORKSPACE_CONFIG", "RANK")}


def test_the_job_has_the_variables_of_a_rank(inline, monkeypatch):
    """Without a workspace of fixed size, no matrix product on a GPU is deterministic."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setenv("RANK", "7")
    assert inline.run(1, variables) == [{"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "RANK": "0"}]
    assert variables() == {"CUBLAS_WORKSPACE_CONFIG": None, "RANK": "7"}


def test_the_functions_own_exception_comes_out(inline):
    """The very object, with its frames, for a debugger; and the next job runs."""
    with pytest.raises(PlantedError) as caught:
        inline.run(1, fail)
    assert caught.value is PLANTED
    assert caught.traceback[-1].name == "fail"
    assert len(inline.run(1, state)) == 1


def test_more_ranks_than_one_cannot_be_had(inline):
    """An error of its own type, which says how many were asked for."""
    with pytest.raises(WorldSizeError, match=r"at most 1 ranks.*but got world_size=3") as caught:
        inline.run(3, state)
    assert (caught.value.world_size, caught.value.available) == (3, 1)


def test_a_process_group_of_the_caller_is_left_alone(inline, tmp_path):
    """It is refused, with its size, and not replaced."""
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match=r"no process group .* but got one of 1 ranks"):
            inline.run(1, state)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_gpu_for_each_rank_or_a_reason():
    """Without enough GPUs: the same type of error, with the number that there is."""
    import torch

    available = torch.cuda.device_count()
    ranks = RankPool("fresh", timeout=30, device="cuda")
    there = (
        f"at most {available} ranks, 1 per GPU" if available else "a CUDA GPU, and none is visible"
    )
    with pytest.raises(WorldSizeError, match=there) as caught:
        ranks.run(available + 1, state)
    assert caught.value.world_size == available + 1
