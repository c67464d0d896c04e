"""Groups of real processes: what a job finds on its ranks, and what comes back."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from descriptors import open_descriptors
from slack import slack

from pytest_precision import RankError
from pytest_precision.ranks import RankPool


def sum_of_ranks():
    import torch
    import torch.distributed as dist

    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


def process():
    return os.getpid()


def add(a, b=0):
    return a + b


def surroundings():
    import torch

    return {
        "directory": os.getcwd(),
        "path": list(sys.path),
        "threads": torch.get_num_threads(),
        "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
        "PLANTED": os.environ.get("PLANTED"),
        "launcher": [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")],
        "session": os.getsid(0) == os.getpid(),
    }


def multiply():
    import numpy as np

    matrix = np.ones((600, 600), dtype=np.float32)
    before = len(os.listdir("/proc/self/task"))
    matrix @ matrix
    return before, len(os.listdir("/proc/self/task"))


def threads_of_many_groups():
    import torch
    import torch.distributed as dist

    groups = [dist.new_group() for _ in range(5)]
    total = torch.ones(1)
    for group in groups:
        dist.all_reduce(total, group=group)
    names = (Path(task, "comm").read_text() for task in Path("/proc/self/task").iterdir())
    return total.item(), sum(name.startswith("gloo") for name in names)


def where_output_goes():
    assert (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    return [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in (1, 2)]


def shout(lines):
    print("said\n" * lines)
    os.write(2, b"below python\n")
    return os.fstat(1).st_size


def result_that_stays():
    return threading.Lock()


class Fragile:
    def __reduce__(self):
        return (only_on_a_rank, ())


def only_on_a_rank():
    if "RANK" not in os.environ:
        raise ValueError("not here")


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_results_come_in_rank_order(pool, world_size):
    """Each rank runs the function once, in one process group with the others."""
    total = world_size * (world_size + 1) // 2
    expected = [(rank, world_size, total) for rank in range(world_size)]
    assert pool.run(world_size, sum_of_ranks) == expected


def test_process_groups_of_a_rank_share_a_thread(pool):
    """Torch's own, one for each group, wake up a hundred times a second."""
    assert pool.run(2, threads_of_many_groups) == [(32, 1), (32, 1)]


def test_a_group_is_kept(pool):
    """The same processes serve the next job of that world size."""
    first = pool.run(2, process)
    assert len(set(first)) == 2
    assert pool.run(2, process) == first


def test_threads_wait_for_each_other(pool):
    """Each gets the results of its own jobs, from a group that serves one job at a time."""
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda number: pool.run(2, add, number), range(20))
    assert [*found] == [[number, number] for number in range(20)]


def test_groups_of_several_sizes_live_side_by_side(pool):
    """A job of another world size does not cost the group of the first."""
    first = pool.run(2, process)
    pool.run(1, process)
    assert pool.run(2, process) == first


def test_fresh_groups_are_not_kept():
    """In `fresh` mode every job has processes of its own, which are gone afterwards."""
    ranks = RankPool("fresh", timeout=30)
    first, second = ranks.run(2, process), ranks.run(2, process)
    assert not set(first) & set(second)
    assert not any(psutil.pid_exists(pid) for pid in first + second)


def test_a_rank_that_died_between_jobs_is_replaced(pool):
    """A group with a dead rank gets no job."""
    first = pool.run(2, process)
    killed = psutil.Process(first[0])
    killed.kill()
    _, alive = psutil.wait_procs([killed], timeout=slack())
    assert not alive
    assert pool.run(2, sum_of_ranks) == [(0, 2, 3), (1, 2, 3)]


def test_a_longer_deadline_gets_a_group_of_its_own():
    """Collectives of a group give up before its deadline: a longer job needs another group."""
    ranks = RankPool(timeout=20)
    first = ranks.run(1, process)
    assert ranks.run(1, process, timeout=10) == first
    second = ranks.run(1, process, timeout=30)
    assert second != first
    assert ranks.run(1, process, timeout=30) == second
    ranks.close()


def test_arguments_travel(pool):
    """Positional ones, keywords, and more bytes than a socket holds."""
    assert pool.run(2, add, 1, b=2) == [3, 3]
    big = b"x" * 10_000_000
    assert pool.run(2, add, big, b=b"y") == [big + b"y"] * 2


def test_an_argument_that_does_not_pickle_is_named(pool):
    """Before anything runs: the group stays."""
    before = pool.run(2, process)
    with pytest.raises(TypeError, match="but got b=<unlocked"):
        pool.run(2, add, 1, b=threading.Lock())
    assert pool.run(2, process) == before


def test_a_result_that_does_not_pickle_names_the_rank(pool):
    """The rank says what it was given to send; the next job runs."""
    with pytest.raises(RankError, match=r"rank \d of 2 .* but got result=<unlocked") as caught:
        pool.run(2, result_that_stays)
    assert caught.value.cause == "raised"
    assert pool.run(2, add, 1) == [1, 1]


def test_a_result_that_does_not_unpickle_names_the_rank(pool):
    """It failed here, but only the rank can mend it."""
    with pytest.raises(RankError, match=r"rank 0 of 2 .* does not unpickle here.*not here"):
        pool.run(2, Fragile)
    assert pool.run(2, add, 1) == [1, 1]


def test_a_job_finds_the_callers_surroundings(pool, tmp_path, monkeypatch):
    """Directory and search path of the moment, not those of the group's start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "later")
    for found in pool.run(2, surroundings):
        assert found["directory"] == str(tmp_path)
        assert found["path"] == sys.path


def test_a_rank_is_alone_in_its_session_with_one_thread(pool):
    """Launcher variables are its own."""
    for rank, found in enumerate(pool.run(2, surroundings)):
        assert found["launcher"] == [str(rank), str(rank), "2"]
        assert (found["threads"], found["OMP_NUM_THREADS"]) == (1, "1")
        assert found["session"]


def test_a_group_has_the_environment_of_its_start(pool, monkeypatch):
    """What a test sets reaches a group that opens after it, though the fork server is older."""
    monkeypatch.setenv("PLANTED", "yes")
    assert RankPool("fresh", timeout=30).run(1, surroundings)[0]["PLANTED"] == "yes"


def test_ranks_do_not_write_on_the_terminal(pool):
    """Python's streams and the descriptors below them lead to a file of the rank's own."""
    for rank, found in enumerate(pool.run(2, where_output_goes)):
        assert [Path(file).name for file in found] == [f"rank{rank}.log"] * 2
        assert "pytest-precision-" in found[0]


def test_output_does_not_pile_up(pool):
    """A kept group starts each job with an empty log."""
    first = pool.run(2, shout, 1000)
    assert pool.run(2, shout, 1000) == first


def test_kept_and_new_groups_leak_no_descriptors():
    """Opening a group and closing it costs the caller nothing that stays."""
    ranks = RankPool("fresh", timeout=30)
    ranks.run(2, process)
    before = open_descriptors()
    for _ in range(3):
        ranks.run(2, process)
    assert open_descriptors() == before


def test_a_product_of_numpy_stays_in_its_thread(pool):
    """The number of threads of its BLAS is settled when it is imported, before there is a rank."""
    [(before, after)] = pool.run(1, multiply)
    assert after == before


def test_the_server_has_torch_and_one_thread(pool):
    """So that a rank starts at once; with more threads, its child could wait for a lost lock."""
    server = psutil.Process(pool.run(1, process)[0]).parent()
    assert any("libtorch" in map.path for map in server.memory_maps())
    assert server.num_threads() == 1


def test_close_ends_all_and_can_be_repeated(tmp_path, monkeypatch):
    """No process and no file stays; a closed pool opens again when it is asked."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ranks = RankPool(timeout=30)
    pids = ranks.run(2, process)
    assert len(list(tmp_path.glob("pytest-precision-*"))) == 1
    started = time.monotonic()
    ranks.close()
    ranks.close()
    assert time.monotonic() - started < slack()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not list(tmp_path.glob("pytest-precision-*"))
    assert ranks.run(1, add, 1) == [1]
    ranks.close()


@pytest.mark.parametrize("world_size", [0, -1, "2", 1.0, True])
def test_a_world_size_is_an_int_from_1(pool, world_size):
    """Anything else is refused with its value."""
    with pytest.raises(ValueError, match="expected an int from 1 but got world_size="):
        pool.run(world_size, process)


@pytest.mark.parametrize(
    "settings", [{"mode": "pool"}, {"device": "gpu"}, {"timeout": 0}, {"timeout": True}]
)
def test_settings_are_checked(settings):
    """When the pool is made, with the name and the value."""
    [(name, value)] = settings.items()
    with pytest.raises(ValueError, match=f"but got {name}={value!r}"):
        RankPool(**settings)
