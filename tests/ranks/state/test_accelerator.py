"""What a device keeps outlives a job: its generator, its memory and what is queued on it.

torch takes the fake device for an accelerator, for as long as a process lives: each test has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pytest_precision.ranks import RankPool

TESTS = Path(__file__).parents[2]

BEGIN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
import torch.distributed as dist
import fake_device
device = fake_device.installed()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""

RECORDING = """
from pytest_precision import Engine, workloads
from pytest_precision.matrix.cell import Cell
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.trace.moment import EVERYTHING, Moment
from pytest_precision.trace.reader import Trace

class DropoutOnDevice(Engine):
    def forward_backward(self, step):
        self.optimizer.zero_grad()
        for number, microbatch in self.my_microbatches(step):
            total, _ = self.workload.loss(self.forward_model, microbatch)
            kept = torch.rand((), generator=device.generator) + 0.5
            self.report_loss(number, total / self.step_tokens)
            (kept * total / self.step_tokens).backward()

class LosesGenerator(DropoutOnDevice):
    def load_state_beside_weights(self, state):
        own = device.generator.get_state()
        super().load_state_beside_weights(state)
        device.generator.set_state(own)

def layout(workload, cell):
    model = workload.model(cell)
    return {engine}(workload, cell, model, torch.optim.AdamW(workload.groups(model)))

folder, cell = Path({folder!r}), Cell(sequence="train2-save-load-train")
segment = cell.segments[0]
record_engine(LayoutJob(layout, layout, workloads.mlp, cell, folder, segment, EVERYTHING))
trace = Trace(folder, 1)

def rng(moment):
    shown = {{one.name: trace.tensor(one) for one in trace.entries(moment) if one.kind == "rng"}}
    assert shown.keys() == {{"cpu", "fake"}}, shown.keys()
    return shown["fake"]

saved, loaded = rng(Moment(2, "save", 2, "save")), rng(Moment(3, "load", 2, "load"))
print(torch.equal(saved, loaded))
"""

BORROWED = """
from pytest_precision.ranks.state import starting_point
before = device.get_rng_state()
with starting_point.borrowed():
    starting_point.reset()
    torch.rand(3, generator=device.generator)
print(torch.equal(before, device.get_rng_state()))
"""

QUEUED = """
from pytest_precision.ranks.state import process_groups
process_groups.close_unused()
dist.new_group([0])
print(device.synchronized)
process_groups.close_unused()
print(device.synchronized)
"""


LEFT = """
from pytest_precision.ranks.state import fingerprint, leaks
before = fingerprint.read_state()
device.streams.append(object())
[leak] = leaks.between(before, fingerprint.read_state())
print(leak.what.replace(" ", "-"))
"""


def printed(program: str, **given: str) -> list[str]:
    text = BEGIN.format(tests=str(TESTS)) + (program.format(**given) if given else program)
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("engine", "restored"), [("DropoutOnDevice", "True"), ("LosesGenerator", "False")]
)
def test_the_generator_of_the_device_is_shown_saved_and_loaded(
    tmp_path: Path, engine: str, restored: str
) -> None:
    """Dropout on a device draws from it; a checkpoint that loses it is seen at `load`."""
    assert printed(RECORDING, engine=engine, folder=str(tmp_path)) == [restored]


def test_a_caller_gets_its_generator_of_the_device_back() -> None:
    """A job that runs inline seeds it."""
    assert printed(BORROWED) == ["True"]


def test_groups_end_when_nothing_is_queued_on_the_device() -> None:
    """An abort of a communicator with queued work may hang."""
    assert printed(QUEUED) == ["0", "1"]


def test_a_current_stream_that_a_job_leaves_is_a_leak() -> None:
    """All that the next job computes would be on it."""
    assert printed(LEFT) == ["current-stream"]


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
