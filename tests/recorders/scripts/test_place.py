"""Which rank a process is, is known from its process group."""

from __future__ import annotations

import pytest

from pytest_precision.recorders.scripts.loop_trace import rank_and_world_size


def test_a_process_without_a_group_is_alone() -> None:
    """A script on one device needs none."""
    assert rank_and_world_size() == (0, 1)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_process_of_a_launch_needs_a_group(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Otherwise each of them would take itself for rank 0."""
    monkeypatch.setenv(name, "2")
    with pytest.raises(RuntimeError, match=rf"a process group before the first.*{name}': '2'"):
        rank_and_world_size()
