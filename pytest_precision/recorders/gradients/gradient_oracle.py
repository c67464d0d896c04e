"""Watch the steps of one rank whose losses and gradients are computed once more at the end.

These are the first two steps, in the second of which old gradients may be left, and the first step
after each other operation: what makes a gradient wrong does so in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from pytest_precision.engine.capture import Capture
from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Observation
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.recorders.gradients.judged import judge_step
from pytest_precision.recorders.gradients.pieces import ShownStep, kept, resident_pieces
from pytest_precision.recorders.gradients.plain import PlainLoop
from pytest_precision.trace.gradient_log import GradientLog
from pytest_precision.workloads.base import Workload

FIRST = 2
"""Steps at the start that are computed once more."""

LARGEST_MODEL = 1 << 22
"""Parameters of a model up to which a check has the time for it."""


_Looked = TypeVar("_Looked")


class GradientOracle:
    """Keeps what one rank shows of some steps, and judges it on rank 0 when the run is over.

    Args:
        workload: computes the step once more.
        cell: where it is trained.
        whole: whether the whole run is recorded, and nothing is planted into it.
    """

    def __init__(self, workload: Workload, cell: Cell, *, whole: bool) -> None:
        self._workload, self._cell = workload, cell
        self._log = GradientLog()
        self._steps: list[ShownStep] = []
        self._due = FIRST
        if PRECISIONS[cell.precision].quantized:
            self._log.silent = f"what {cell.precision} rounds is not computed once more"
        self._on = whole and not self._log.silent
        self._whole = whole

    def interrupted(self) -> None:
        """Have the next step computed once more: something else than a train step came before."""
        self._due = max(self._due, 1)

    @contextmanager
    def around(self, engine: Engine, step: int) -> Iterator[None]:
        """Keep what the `forward_backward` inside starts from and makes, where that is asked."""
        small = sum(p.numel() for p in engine.model.parameters()) <= LARGEST_MODEL
        if not (self._on and self._due and small):
            yield
            return
        self._due -= 1
        shown = ShownStep(step, engine.data_parallel)
        stored = self._looked_at(lambda: _before(engine, shown))
        yield
        if stored is not None:
            self._looked_at(lambda: _after(engine, shown, stored))
            self._steps.append(shown)

    def reduced(self, engine: Engine, step: int) -> None:
        """Keep the reduced gradients of a step that is computed once more."""
        if self._steps and self._steps[-1].step == step and not engine.fused_step:
            self._looked_at(lambda: _reduced(engine, self._steps[-1]))

    def _looked_at(self, look: Callable[[], _Looked]) -> _Looked | None:
        """Look at an engine; one that raises then is not judged, and trains on."""
        try:
            return look()
        except Exception as error:
            what = f"{type(error).__name__} when it was looked at: {error}"
            self._log.silent, self._on = f"its engine raised {what}", False
            return None

    def write(self, folder: Path, rank: int) -> None:
        """Judge the steps by what all ranks have kept of them; a collective, and rank 0 writes."""
        if not self._whole:
            return
        own = self._log.silent, self._steps
        ranks = [own] * dist.get_world_size()
        if len(ranks) > 1:
            dist.gather_object(own, ranks if rank == 0 else None, dst=0)
        if rank == 0:
            self._log.silent = next((silent for silent, _ in ranks if silent), "")
            if not self._log.silent and not self._steps:
                self._log.silent = f"the model has more than {LARGEST_MODEL:,} parameters"
            if not self._log.silent:
                self._judge([steps for _, steps in ranks])
            self._log.write(folder)

    def _judge(self, ranks: list[list[ShownStep]]) -> None:
        devices = [torch.cuda.current_device()] if self._cell.device == "cuda" else []
        with torch.random.fork_rng(devices):
            try:
                self._judge_all(ranks)
            except Exception as error:  # of a model that only its layout can call
                self._log = GradientLog(silent=f"the plain loop raised {type(error).__name__}")

    def _judge_all(self, ranks: list[list[ShownStep]]) -> None:
        loop = PlainLoop(self._workload, self._cell)
        for number in range(len(self._steps)):
            if not self._log.breaches and not self._log.silent:
                before = [own[number - 1] for own in ranks if number]
                judge_step(self._log, loop, [own[number] for own in ranks], before)


def _before(engine: Engine, shown: ShownStep) -> list[Observation]:
    """Keep what a forward and backward start from; return the resident weights."""
    shown.buffers = {
        name: buffer.detach().to("cpu", copy=True) for name, buffer in engine.model.named_buffers()
    }
    if engine.scaler is not None:
        shown.scale = engine.scaler.scale
    return resident_pieces(engine)


def _after(engine: Engine, shown: ShownStep, stored: list[Observation]) -> None:
    """Keep what a forward and backward have read and made."""
    used = kept(engine.capture.kept("used_param"))
    named = {seen.name for seen in used}
    shown.weights = used + [seen for seen in stored if seen.name not in named]
    shown.losses = kept(engine.capture.kept("loss"))
    if "grad" not in engine.unobservable:
        seen = engine.observe("forward_backward", Capture())
        shown.grad = kept(one for one in seen if one.kind == "grad")


def _reduced(engine: Engine, shown: ShownStep) -> None:
    """Keep the sums over all ranks."""
    seen = engine.observe("reduce_grads", Capture())
    shown.reduced = kept(one for one in seen if one.kind == "reduced_grad")
