"""What the plugin does not touch under a launcher, and what it refuses there."""

from __future__ import annotations

from pathlib import Path

import launches
import pytest

OF_ALL_RANKS = """
import os

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def test_sum():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == 2


@pytest.mark.precision_matrix(sequence=["train2"])
def test_cell_that_is_not_to_run(cell):
    pass
"""

WITH_RANKS = """
import os

import pytest


@pytest.mark.world_size(2)
def test_ranks(ranks):
    assert len(set(ranks.run(os.getpid))) == 2
"""


def test_a_suite_that_runs_on_all_ranks(tmp_path: Path) -> None:
    """All processes run all of it and say so, as they do without the plugin."""
    (tmp_path / "test_all.py").write_text(OF_ALL_RANKS)
    command, port = [*launches.PYTEST, "-p", "no:cacheprovider"], launches.free_port()
    processes = [(command, launches.of_torchrun(rank, port)) for rank in (0, 1)]
    with launches.started(tmp_path, processes) as (ended, _):
        pass
    assert ended.statuses == [0, 0], ended.output
    assert ended.output.count("1 passed, 1 skipped in") == 2
    assert ended.output.count("test session starts") == 2
    assert "precision: torchrun" not in ended.output


def test_collecting_shows_tests_once(tmp_path: Path) -> None:
    """The other processes are silent, and nobody waits for anybody."""
    (tmp_path / "test_ranks.py").write_text(WITH_RANKS)
    ended = launches.run(tmp_path, "Slurm", "--collect-only", "-q", "-p", "no:cacheprovider")
    assert ended.statuses == [0, 0], ended.output
    assert ended.output.count("::test_ranks") == 1


def test_workers_of_xdist_are_refused(tmp_path: Path) -> None:
    """With the reason, and what to do instead."""
    pytest.importorskip("xdist")
    (tmp_path / "test_ranks.py").write_text(WITH_RANKS)
    controller, _ = launches.commands("Slurm", "-n", "1", "-p", "no:cacheprovider")
    with launches.started(tmp_path, [controller]) as (ended, _):
        pass
    assert ended.statuses == [pytest.ExitCode.USAGE_ERROR]
    assert "expected no -n under Slurm, whose 2 processes hold the ranks" in ended.output
    assert "leave -n out" in ended.output


def test_a_usage_error_is_reported_once(tmp_path: Path) -> None:
    """All processes find it, and the first one says it."""
    (tmp_path / "test_ranks.py").write_text(
        WITH_RANKS + "\n@pytest.mark.precision_matrix(sequence=['dance'])\ndef test(cell): ...\n"
    )
    ended = launches.run(tmp_path, "Slurm", "--precision-matrix", "-p", "no:cacheprovider")
    assert ended.statuses == [pytest.ExitCode.USAGE_ERROR, 0], ended.output
    assert ended.output.count("ERROR: ") == 1
