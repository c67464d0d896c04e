"""What observing a step costs on a GPU is written into the report of whoever has one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from pytest_precision import Capture, Cell, layouts, workloads
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.options import Settings
from pytest_precision.trace.digests import in_order
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import LIN8, digested
from pytest_precision.trace.writer import TraceWriter

STEPS = 3
"""The first one also starts kernels and allocates: the last one counts."""


def test_what_observing_a_step_costs_is_written_down(
    one_rank: None, tmp_path: Path, settings: Settings, record_property: Callable[..., None]
) -> None:
    """In seconds: the step itself, and of what it shows the copies, the digests and the writing."""
    cell, capture = Cell(sequence="train4", device=settings.device), Capture()
    engine = layouts.adamw(workloads.gpt(), cell)
    engine.start(capture)
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        finish(settings.device)
        start = time.perf_counter()
        yield
        finish(settings.device)
        seconds[part] += time.perf_counter() - start

    with TraceWriter(tmp_path, 0, digests=True, digest_name=LIN8) as writer:
        for step in range(1, STEPS + 1):
            seconds |= dict.fromkeys(("step", "copy", "digest", "write"), 0.0)
            capture.begin()
            for phase in STEP_PHASES:
                with timed("step"):
                    getattr(engine, phase)(*([step] if phase == "forward_backward" else []))
                with timed("copy"):
                    seen = [*engine.observe(phase, capture)]
                    held = [replace(one, tensor=in_order(one.tensor.detach())) for one in seen]
                with timed("digest"):
                    kept = [digested(one, LIN8) for one in held]
                with timed("write"):
                    writer.add(Moment(step, "train", step, phase), kept)
        with timed("write"):
            writer.finish(Header(1, {}, {}, digests=True))
    record_property("observing", json.dumps(seconds))
    assert min(seconds.values()) > 0


def finish(device: str) -> None:
    """Wait for what the device was asked for, so that no part is charged with another's work."""
    if device == "cuda":
        torch.cuda.synchronize()
