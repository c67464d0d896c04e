"""What recording costs: the digests of a train step, and the watching of its update.

    python ci/bench/recording.py [--size 512MB] [--rounds 9] [--device cuda]

On one rank, with fp32 AdamW on the perceptron, on one thread but for the digests of large tensors.
The base is one read of the state, parameters, gradients and both moments, as a sum of 64-bit
integers. The digests of a step are more than one read: of the weights as they were used, of the
gradients before and after the reduction, of the moments and of the weights. They are timed where
they are taken, within real steps. What is compared runs in turns in one process; the figures are
medians over the rounds. A figure that misses its target is marked; targets are those of the CPU,
since a GPU reads its memory faster than it hands it to the host, where digests are taken.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import measure
import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from pytest_precision import layouts, workloads
from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import STEP_PHASES, Engine
from pytest_precision.engine.observation import Observation
from pytest_precision.matrix.cell import Cell
from pytest_precision.probes.declared_rule.oracle_log import Breach, OracleLog
from pytest_precision.probes.declared_rule.update_watcher import UpdateWatcher
from pytest_precision.ranks.gpus import devices
from pytest_precision.trace.digests import THREADS, digest
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import digest_name_of_cell, digested
from pytest_precision.trace.writer import TraceWriter

MEBIBYTE = 2**20

RECORDING = 1.5
"""Largest ratio of the digests of a step to one read of the state."""

WATCHED = 8
"""Largest ratio of watching an update to one read of the state."""

DEPTH = 4

STATE_TENSORS = 4
"""Parameter, gradient and two moments."""


class Bench:
    """One engine after a train step, and what is done with it.

    Args:
        size: bytes of its state, at least.
        folder: for the trace.
        device: that it trains on.
    """

    def __init__(self, size: int, folder: Path, device: str) -> None:
        self.device, self.folder = device, folder
        self.engine = _engine(size, device)
        self.watched = _engine(size, device)  # the watcher counts its steps: it must see each
        self.digest_name = digest_name_of_cell(Cell(device=device))
        self.writer = TraceWriter(
            folder, 0, digests=True, threads=THREADS, digest_name=self.digest_name
        )
        self.watcher = UpdateWatcher(self.engine.workload, Cell(device=device))
        self.capture = Capture(snapshot=self._digested)
        self.engine.start(self.capture)
        self.steps = self.watched_steps = 0
        self.recording: list[float] = []
        self.recorded_step()  # what is handed over stays until the next one: other steps add none
        self.recording.clear()
        self.state = [*_state(self.engine)]

    def read(self) -> None:
        """Read the state once."""
        for tensor in self.state:
            flat = tensor.reshape(-1)
            flat[: flat.numel() // 2 * 2].view(torch.int64).sum()

    def hash(self) -> None:
        """Digest the state once: the least that a digest of every tensor costs."""
        for tensor in self.state:
            digest(tensor)

    def step(self) -> None:
        """A train step alone."""
        self.steps += 1
        self.engine.forward_backward(self.steps)
        for phase in STEP_PHASES[1:]:
            getattr(self.engine, phase)()

    def recorded_step(self) -> None:
        """A train step with its digests, and how long those took."""
        self.recording.append(0.0)
        self.steps += 1
        self.capture.begin()
        self.engine.forward_backward(self.steps)
        self._observe(STEP_PHASES[0])
        for phase in STEP_PHASES[1:]:
            getattr(self.engine, phase)()
            self._observe(phase)

    def measured_step(self) -> None:
        """A train step whose update is measured and judged by the workload's rule."""
        self.watched_steps += 1
        self.watched.forward_backward(self.watched_steps)
        for phase in STEP_PHASES[1:]:
            with self.watcher.around(self.watched, phase, self.watched_steps):
                getattr(self.watched, phase)()

    def breaches(self) -> list[Breach]:
        """Return the updates that were judged wrong; a search for what explains one takes long."""
        self.watcher.write(self.folder, 0)
        return OracleLog.read(self.folder, 1).breaches

    def _digested(self, observation: Observation) -> Observation:
        with self._timed():
            return digested(observation, self.digest_name)

    def _observe(self, phase: str) -> None:
        moment = Moment(self.steps, "train", self.steps, phase)
        with self._timed():
            self.writer.add(moment, [*self.engine.observe(phase, self.capture)])

    @contextmanager
    def _timed(self) -> Iterator[None]:
        self._finish()
        start = time.perf_counter()
        yield
        self._finish()
        self.recording[-1] += time.perf_counter() - start

    def _finish(self) -> None:
        """Wait for the device, so that a step's own work is not counted as that of its digests."""
        measure.finished(lambda: None, self.device)()


def _engine(size: int, device: str) -> Engine:
    width = math.isqrt(-(-size // (STATE_TENSORS * DEPTH * torch.float32.itemsize))) + 1
    torch.manual_seed(1)
    return layouts.adamw(workloads.mlp(width=width, depth=DEPTH), Cell(device=device))


def _state(engine: Engine) -> Iterator[Tensor]:
    for _, parameter in engine.masters():
        assert parameter.grad is not None
        state = engine.optimizer.state[parameter]
        yield from (parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"])


def row(name: str, figure: str, target: str = "", missed: bool = False) -> None:
    """Print one row of the table."""
    print(f"{name:<60} {figure:>8} {target:>7}  {'MISSED' if missed else ''}", flush=True)


def table(size: int, rounds: int, folder: Path, device: str) -> None:
    """Measure and print."""
    bench = Bench(size, folder, device)
    parts = {
        "read": bench.read,
        "hash": bench.hash,
        "step": bench.step,
        "recorded": bench.recorded_step,
        "measured": bench.measured_step,
    }
    seconds = measure.interleave(
        {name: measure.finished(part, device) for name, part in parts.items()}, rounds
    )
    if wrong := bench.breaches():
        raise ValueError(f"expected updates by the workload's rule but got {wrong[0]}")
    state_bytes = sum(tensor.nbytes for tensor in bench.state)
    versions = f"torch {torch.__version__}, xxhash {xxhash.VERSION}"
    print(f"{versions}, {state_bytes / MEBIBYTE:.0f} MB of state on {device}")
    row(
        "one read of the state, GB/s",
        f"{state_bytes / statistics.median(seconds['read']) / 1e9:.1f}",
    )
    row(
        "one digest of the state, ratio to one read",
        f"{measure.ratio(seconds, 'hash', 'read'):.2f}",
    )
    ratio = statistics.median(bench.recording) / statistics.median(seconds["read"])
    target = (f"<= {RECORDING}", ratio > RECORDING) if device == "cpu" else ()
    row("digests of a step, ratio to one read", f"{ratio:.2f}", *target)
    row("a train step, ms", f"{1e3 * statistics.median(seconds['step']):.0f}")
    recorded = statistics.median(bench.recording) / statistics.median(seconds["step"])
    row("digests, share of a train step", f"{100 * recorded:.0f} %")
    measured = measure.ratio(seconds, "measured", "step") - 1
    row("updates watched, share of a train step", f"{100 * measured:.0f} %")
    lost = statistics.median(
        watched_seconds - plain
        for watched_seconds, plain in zip(seconds["measured"], seconds["step"], strict=True)
    )
    reads = lost / statistics.median(seconds["read"])
    target = (f"<= {WATCHED}", reads > WATCHED) if device == "cpu" else ()
    row("updates watched, ratio to one read of the state", f"{reads:.1f}", *target)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="512MB", help="of the state, at least")
    parser.add_argument("--rounds", default=9, type=int, help="rounds of each measurement")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        store = dist.FileStore(f"{name}/store", 1)  # type: ignore[attr-defined]
        backend = devices.backend(options.device, shared=False)
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        table(measure.size(options.size), options.rounds, Path(name), options.device)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
