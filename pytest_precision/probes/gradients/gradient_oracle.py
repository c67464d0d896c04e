"""Store some steps of a run, to recompute their losses and gradients at the end.

These are the first two steps, in the second of which old gradients may be left, and the first step
after each other operation: what makes a gradient wrong does so in one of them.
"""

from __future__ import annotations

import io
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
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.probes.gradients.gradient_log import GradientLog
from pytest_precision.probes.gradients.judged import judge_step
from pytest_precision.probes.gradients.plain import PlainLoop
from pytest_precision.probes.gradients.plain_sums import PlainSums
from pytest_precision.probes.gradients.shown_pieces import (
    ShownStep,
    cpu_copies,
    resident_pieces,
    step_digest,
)
from pytest_precision.workloads.base import Workload

FIRST_STEPS = 2
"""Steps at the start that are computed once more."""

LARGEST_MODEL = 1 << 22
"""Parameters of a model up to which a check has the time for it."""

TURNED_OFF = "the test leaves gradients unchecked"

Read = TypeVar("Read")


class GradientOracle:
    """Stores the losses and gradients of some steps, and compares them with recomputed ones.

    Whatever is raised on the way, the check goes on, and the log says why nothing was judged.

    Args:
        workload: computes the step once more.
        cell: where it is trained.
        enabled: whether the test has gradients judged.
        other_log: the log of the other side, of the same workload in the same cell. A step that
            shows the same here is not judged again, and one that starts from the same is not
            computed again. None for the side that is recorded first, which keeps what it computes.
    """

    def __init__(
        self,
        workload: Workload,
        cell: Cell,
        *,
        enabled: bool = True,
        other_log: GradientLog | None = None,
    ) -> None:
        self._workload, self._cell = workload, cell
        self._right = other_log.right if other_log else {}
        self._sums = None if other_log is None else other_log.sums
        self._log = GradientLog(silent="" if enabled else TURNED_OFF)
        self._steps: list[ShownStep] = []
        self._due = FIRST_STEPS

    def interrupted(self) -> None:
        """Select the next train step for the gradient check, because a save or load precedes it."""
        self._due = max(self._due, 1)

    @contextmanager
    def around(self, engine: Engine, step: int) -> Iterator[None]:
        """Store inputs and results of the context's `forward_backward`, if its step is checked."""
        begun = self._read_engine(lambda: self._begin(engine, step)) if self._due else None
        yield
        if begun is not None:
            self._read_engine(lambda: self._end(engine, *begun))

    def _begin(self, engine: Engine, step: int) -> tuple[ShownStep, list[Observation]] | None:
        """Return a new record of a step, and its weights; None if the model is too large."""
        if sum(parameter.numel() for parameter in engine.model.parameters()) > LARGEST_MODEL:
            self._silence(f"the model has more than {LARGEST_MODEL:,} parameters")
            return None
        self._due -= 1
        shown_step = ShownStep(step, engine.data_parallel)
        shown_step.buffers = {
            unwrapped(name): buffer.detach().to("cpu", copy=True)
            for name, buffer in engine.model.named_buffers()
        }
        if engine.scaler is not None:
            shown_step.scale = engine.scaler.scale
        return shown_step, resident_pieces(engine)

    def _end(self, engine: Engine, shown: ShownStep, stored: list[Observation]) -> None:
        """Add to a step's record the weights that forward read, the losses and the gradients."""
        used_observations = cpu_copies(engine.capture.kept("used_param"))
        named = {piece.name for piece in used_observations}
        shown.weights = used_observations + [piece for piece in stored if piece.name not in named]
        shown.losses = cpu_copies(engine.capture.kept("loss"))
        pieces = [*engine.observe("forward_backward", Capture())]
        shown.grad = cpu_copies(piece for piece in pieces if piece.kind == "grad")
        if self._cell.primary_weight == "quantized":
            shown.weights += cpu_copies(piece for piece in pieces if piece.kind == "used_quantized")
        self._steps.append(shown)

    def reduced(self, engine: Engine, step: int) -> None:
        """Keep a step's gradients after their reduction over ranks, if the step is checked."""
        if self._steps and self._steps[-1].step == step and not engine.fused_step:
            self._read_engine(lambda: self._keep_reduced(engine))

    def updating(self, weights: Callable[[], list[Observation]]) -> None:
        """Copy the optimizer's weights for the check; called before and after their update."""
        if self._steps:
            self._steps[-1].updated += (self._read_engine(lambda: cpu_copies(weights())) or [],)

    def _keep_reduced(self, engine: Engine) -> None:
        pieces = engine.observe("reduce_grads", Capture())
        self._steps[-1].reduced = cpu_copies(
            piece for piece in pieces if piece.kind == "reduced_grad"
        )

    def _read_engine(self, read: Callable[[], Read]) -> Read | None:
        """Call a function that reads the engine; if it raises, return None and end all checks."""
        if self._log.silent:
            return None
        try:
            return read()
        except Exception as error:  # of what an engine of somebody's own shows
            words = f"its engine raised {type(error).__name__} when it was looked at: {error}"
            self._silence(words)
            return None

    def _silence(self, reason: str) -> None:
        self._log.silent, self._steps = reason, []

    def write(self, folder: Path, rank: int) -> None:
        """Compare all ranks' steps on rank 0, and write a log to disk; all ranks must call this."""
        digests = self._read_engine(lambda: [*map(step_digest, self._steps)]) or []
        reports = _gathered((self._log.silent, digests))
        self._log.silent = next((reason for reason, _ in reports if reason), "")
        steps = [
            "-".join(shown) for shown in zip(*(digests for _, digests in reports), strict=False)
        ]
        if not self._log.silent and not steps:
            self._log.silent = "no step was trained"
        ranks = [] if self._log.silent or {*steps} <= {*self._right} else self.gathered(rank)
        if rank == 0:
            if not self._log.silent:
                self._judge(steps, ranks, PlainSums(folder, self._sums))
            self._log.write(folder)

    def gathered(self, rank: int) -> list[list[ShownStep]]:
        """Return all ranks' stored steps on rank 0, [] on others; all ranks must call this."""
        if dist.get_world_size() == 1:
            return [self._steps]
        # Packed here, since one rank that raised in a collective would have the others wait.
        packed_steps = self._read_engine(lambda: _packed_bytes(self._steps)) or b""
        ranks = [(self._log.silent, packed_steps)] * dist.get_world_size()
        dist.gather_object(ranks[0], ranks if rank == 0 else None, dst=0)
        self._log.silent = next((reason for reason, _ in ranks if reason), "")
        return (
            []
            if self._log.silent or rank
            else [_unpacked_shown_steps(packed_steps) for _, packed_steps in ranks]
        )

    @property
    def silent(self) -> str:
        """Return the reason why no gradient can be checked; empty if they can be checked."""
        return self._log.silent

    def _judge(self, steps: list[str], ranks: list[list[ShownStep]], sums: PlainSums) -> None:
        devices = [torch.cuda.current_device()] if self._cell.device == "cuda" else []
        with torch.random.fork_rng(devices):
            try:
                self._judge_all(steps, ranks, sums)
            except Exception as error:  # of a model that only its layout can call
                words = f"the plain loop raised {type(error).__name__}: {error}"
                self._log = GradientLog(silent=words)

    def _judge_all(self, steps: list[str], ranks: list[list[ShownStep]], sums: PlainSums) -> None:
        loop = None
        for number, step in enumerate(steps):
            if self._log.breaches or self._log.silent:
                break
            if step in self._right:
                judged, worst = self._right[step]
                log = GradientLog(judged, worst)
            else:
                loop = loop or PlainLoop(self._workload, self._cell)
                earlier_shown_steps = [shown_steps[number - 1] for shown_steps in ranks if number]
                log = GradientLog()
                judge_step(
                    log,
                    loop,
                    [shown_steps[number] for shown_steps in ranks],
                    earlier_shown_steps,
                    sums,
                )
            if not log.breaches and not log.silent:
                log.right[step] = log.judged, log.worst
            self._log.add(log)
        self._log.sums = sums.files


def _gathered(report: tuple[str, list[str]]) -> list[tuple[str, list[str]]]:
    """Gather one object per rank into a list in rank order; all ranks must call this together."""
    reports = [report] * dist.get_world_size()
    if len(reports) > 1:
        dist.all_gather_object(reports, report)
    return reports


def _packed_bytes(steps: list[ShownStep]) -> bytes:
    buffer = io.BytesIO()
    torch.save(steps, buffer)  # pickle alone would save each tensor by itself, at some cost
    return buffer.getvalue()


def _unpacked_shown_steps(packed_bytes: bytes) -> list[ShownStep]:
    steps: list[ShownStep] = torch.load(io.BytesIO(packed_bytes), weights_only=False)
    return steps
