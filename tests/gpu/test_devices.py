"""What ranks do with the GPUs of a machine: choose, share, lock, empty and leave them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gpu_sides
import pytest
import torch

from pytest_precision import Cell, DevicesBusyError, PrecisionLeakWarning, workloads
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.gpus import devices
from pytest_precision.ranks.gpus.devices import listed_devices
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.trace.moment import EVERYTHING
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.writer import LARGE

pytestmark = pytest.mark.usefixtures("gpus")


@pytest.fixture
def pool() -> Iterator[RankPool]:
    made = RankPool(timeout=120, device="cuda", ranks_per_device=2)
    yield made
    made.close()


def test_memory_that_a_job_has_left_is_there_for_the_next(pool: RankPool) -> None:
    """G2: six tenths of a GPU for one rank, and then for each group in turn."""
    for world_size in (1, 2, 1):
        share = 0.6 / world_size
        assert min(pool.run(world_size, gpu_sides.allocates, share)) > share


def test_a_rank_is_on_the_gpu_of_its_local_rank(pool: RankPool) -> None:
    """G8, G9: where two share a GPU as well."""
    found = pool.run(2, gpu_sides.device_of_rank)
    assert all(own == local for own, local in found)
    listed = listed_devices()
    if listed is not None and not any(name.startswith("MIG-") for name in listed):
        assert {own.removeprefix("GPU-") for own, _ in found} <= {
            name.removeprefix("GPU-") for name in listed
        }


def test_groups_of_a_job_end_before_the_next(pool: RankPool) -> None:
    """G15: twice on kept ranks, with work still queued."""
    assert pool.run(2, gpu_sides.sums_in_groups) == pool.run(2, gpu_sides.sums_in_groups)


def test_what_a_job_leaves_on_the_device_is_told(pool: RankPool) -> None:
    """G12: which attention runs, and the current stream."""
    with pytest.warns(PrecisionLeakWarning, match="flash attention") as told:
        pool.run(1, gpu_sides.attention_without_flash)
    assert "current stream" in str(told[0].message)


def test_another_container_is_waited_for(tmp_path: Path, gpus: int, monkeypatch) -> None:
    """G17: in a folder that both have."""
    monkeypatch.setenv("PRECISION_DEVICE_LOCKS", str(tmp_path))
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    with devices.held([uuid], 1):
        ranks = RankPool("fresh", 5, "cuda")
        try:
            with pytest.raises(DevicesBusyError):
                ranks.run(gpus, gpu_sides.device_of_rank)
        finally:
            ranks.close()


def test_a_digest_waits_for_the_stream_that_writes(pool: RankPool) -> None:
    """G5: a thread of the writer has another current stream."""
    [(found, written)] = pool.run(1, gpu_sides.digests_of_a_side_stream, LARGE)
    assert found == written


def test_a_script_may_capture_cuda_graphs(one_rank: None, tmp_path: Path) -> None:
    """G6: nothing is read in the capture, and what replays hide is named."""
    record_script(gpu_sides.captured(), Cell(sequence="train3"), tmp_path, EVERYTHING)
    why = Trace(tmp_path, 1).header.unobservable
    assert any("CUDA graph" in reason for reason in why.values())


def test_a_window_holds_no_copy_on_the_gpu(one_rank: None, tmp_path: Path) -> None:
    """G10: the values around a divergence take no more of the GPU than their digests do."""
    from pytest_precision import layouts
    from pytest_precision.recorders.engine_recorder import record_engine
    from pytest_precision.recorders.layout_job import LayoutJob

    peaks = {}
    for number, window in enumerate((None, EVERYTHING)):
        torch.cuda.reset_peak_memory_stats()
        (tmp_path / str(number)).mkdir()
        cell = Cell(sequence="train2", device="cuda")
        layout, folder = layouts.adamw, tmp_path / str(number)
        segment = cell.segments[0]
        record_engine(LayoutJob(layout, layout, workloads.gpt, cell, folder, segment, window))
        peaks[window] = torch.cuda.max_memory_allocated()
    assert peaks[EVERYTHING] <= peaks[None] * 1.05
