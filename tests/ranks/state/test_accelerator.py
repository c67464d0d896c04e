"""What a device keeps outlives a job: its generator, its memory and what is queued on it.

torch takes the fake device for an accelerator, for as long as a process lives: each job that
installs one has a rank of its own.
"""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_precision import Cell, Engine, workloads
from pytest_precision.ranks import RankPool
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.state import fingerprint, leaks, process_groups, starting_point
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.trace.moment import EVERYTHING, Moment
from pytest_precision.trace.reader import Trace


class DropoutOnDevice(Engine):
    """Draws on the device what a loss is multiplied with."""

    def forward_backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        for number, microbatch in self.my_microbatches(step):
            total, _ = self.workload.loss(self.forward_model, microbatch)
            kept = torch.rand((), generator=torch.fake.generator) + 0.5
            self.report_loss(number, total / self.step_tokens)
            (kept * total / self.step_tokens).backward()


class LosesGenerator(DropoutOnDevice):
    """Draws after a load as if there had been none."""

    def load_state_beside_weights(self, state):
        own = torch.fake.generator.get_state()
        super().load_state_beside_weights(state)
        torch.fake.generator.set_state(own)


ALONE = Needs(fresh=True, may_leave=("*",))
"""What a job needs that installs the device, which its rank keeps."""


def of_engine(kind, workload, cell):
    model = workload.model(cell)
    return kind(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def restores_generator(kind: type[Engine], folder: Path) -> bool:
    """Tell whether the generator of the device is after a load what it was at the save."""
    import fake_device

    fake_device.installed()
    layout, cell = partial(of_engine, kind), Cell(sequence="train2-save-load-train")
    segment = cell.segments[0]
    record_engine(LayoutJob(layout, layout, workloads.mlp, cell, folder, segment, EVERYTHING))
    trace = Trace(folder, 1)
    generators = []
    for moment in (Moment(2, "save", 2, "save"), Moment(3, "load", 2, "load")):
        shown = {one.name: one for one in trace.entries(moment) if one.kind == "rng"}
        assert shown.keys() == {"cpu", "fake"}, shown.keys()
        generators.append(trace.tensor(shown["fake"]))
    return torch.equal(*generators)


def gets_generator_back() -> bool:
    """Tell whether the generator of the device is after a job what it was before."""
    import fake_device

    device = fake_device.installed()
    before = device.get_rng_state()
    with starting_point.borrowed():
        starting_point.reset()
        torch.rand(3, generator=device.generator)
    return torch.equal(before, device.get_rng_state())


def waits_for_device() -> list[int]:
    """Return how often a new group's end waits for the device, before it ends and after."""
    import fake_device

    device = fake_device.installed()
    process_groups.close_unused()
    dist.new_group([0])
    before = device.synchronized
    process_groups.close_unused()
    return [before, device.synchronized]


def leaks_of_a_stream() -> list[str]:
    """Return what a job is said to have left that left another current stream."""
    import fake_device

    device = fake_device.installed()
    before = fingerprint.read_state()
    device.streams.append(object())
    return [leak.name for leak in leaks.between(before, fingerprint.read_state())]


@pytest.mark.parametrize(("kind", "restored"), [(DropoutOnDevice, True), (LosesGenerator, False)])
def test_the_generator_of_the_device_is_shown_saved_and_loaded(
    pool: RankPool, tmp_path: Path, kind: type[Engine], restored: bool
) -> None:
    """Dropout on a device draws from it; a checkpoint that loses it is seen at `load`."""
    assert pool.run(1, restores_generator, kind, tmp_path, needs=ALONE) == [restored]


def test_a_caller_gets_its_generator_of_the_device_back(pool: RankPool) -> None:
    """A job that runs inline seeds it."""
    assert pool.run(1, gets_generator_back, needs=ALONE) == [True]


def test_groups_end_when_nothing_is_queued_on_the_device(pool: RankPool) -> None:
    """An abort of a communicator with queued work may hang."""
    assert pool.run(1, waits_for_device, needs=ALONE) == [[0, 1]]


def test_a_current_stream_that_a_job_leaves_is_a_leak(pool: RankPool) -> None:
    """All that the next job computes would be on it."""
    assert pool.run(1, leaks_of_a_stream, needs=ALONE) == [["current stream"]]


def fill(held: int, cached: int) -> int:
    import fake_device

    device = fake_device.installed()
    device.held, device.cached = held, cached
    return os.getpid()


@pytest.mark.parametrize(("held", "others_stay"), [(0, True), (80, False)])
def test_idle_groups_leave_a_device_that_is_full(held: int, others_stay: bool) -> None:
    """What only the allocator keeps is given back after each job, and is no reason."""
    pool = RankPool(timeout=60)
    try:
        [idle] = pool.run(1, os.getpid)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the device that is there now is a leak of the job
            pool.run(2, fill, held, 90)
        assert (pool.run(1, os.getpid) == [idle]) is others_stay
    finally:
        pool.close()
