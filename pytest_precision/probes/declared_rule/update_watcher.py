"""Measure lost updates, and check the update rule, around each optimizer step.

The meter says how much of the exact update was lost, the oracle whether it follows the rule that
the workload declares. Both see a whole run or nothing: the values around a step are recorded again
only to explain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from pytest_precision.engine.engine import STEP_PHASES, Engine
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.matrix.cell import Cell
from pytest_precision.probes.declared_rule.oracle.update_oracle import UpdateOracle
from pytest_precision.probes.declared_rule.oracle_log import OracleLog
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.weights import Watched, Weight
from pytest_precision.workloads.base import Workload


class UpdateWatcher:
    """Measures each step's updates lost to rounding, and checks them by the optimizer's formula.

    Args:
        workload: declares the rule.
        cell: where it is trained.
        explains: whether wrong updates are explained.
    """

    def __init__(self, workload: Workload, cell: Cell, *, explains: bool = True) -> None:
        self._meter = UpdateMeter()
        self._log = OracleLog()
        self._oracle: UpdateOracle | None = None
        rule = workload.optimizer_rule
        if rule is None:
            self._log.silent = f"{type(workload).__name__} declares no optimizer_rule"
        else:
            self._log.rule = type(rule).__name__
            self._oracle = UpdateOracle(workload, rule, cell, self._log, explains=explains)

    @contextmanager
    def around(self, engine: Engine, phase: str, step: int) -> Iterator[None]:
        """Check the weight update inside the context, if `phase` is the optimizer's step."""
        self._note_form(engine)
        oracle = None if engine.fused_step else self._oracle
        if phase == "clip_grads" and oracle is not None:
            oracle.keep_reduced(engine)
        if phase != "optimizer_step":
            yield
            return
        with self._watching(engine) as watched:
            if oracle is not None:
                oracle.before(engine, watched)
            yield
        self._log.note_read_back(self._meter.kept.read_back(step))
        if bool(torch.isfinite(engine.grad_norm).all()):
            self._meter.after(engine.optimizer, watched, step)
            if oracle is not None:
                oracle.after(engine, watched, step)
            self._meter.kept.leave(watched)  # the last: it overwrites what the update began with

    @contextmanager
    def _watching(self, engine: Engine) -> Iterator[list[Watched]]:
        """Yield copies of an engine's weights and gradients, made before its update.

        A framework that reduces, clips and updates in one call may give the optimizer its gradients
        in that call. Then they are there when the optimizer's own step begins, for some groups
        after others.
        """
        watched = self._meter.before(engine.optimizer, Weight.of(engine))
        hooked = getattr(engine.optimizer, "register_step_pre_hook", None)
        if hooked is None or not engine.fused_step:
            yield watched
            return
        begun: set[int] = set()

        def begin(*_: Any) -> None:
            stepping = {id(tensor) for tensor in updated_tensors(engine.optimizer)} - begun
            weights = [weight for weight in Weight.of(engine) if id(weight.parameter) in stepping]
            copies = self._meter.before(engine.optimizer, weights)
            with_gradient = {
                id(watch.weight.parameter): watch for watch in copies if watch.grad is not None
            }
            watched[:] = [with_gradient.get(id(watch.weight.parameter), watch) for watch in watched]
            begun.update(with_gradient)

        hook = hooked(begin)
        try:
            yield watched
        finally:
            hook.remove()

    def _note_form(self, engine: Engine) -> None:
        """Log whether the engine updates in one call or in phases, and how it clips."""
        log = self._log
        log.shown_by = "call" if engine.fused_step else "phases"
        log.by_l2 = log.by_l2 and not callable(engine.clip_rule)
        log.by_loss_scale &= type(engine.scaler) in (LossScale, type(None))
        if engine.fused_step:
            log.silent = log.silent or "its engine reduces, clips and updates in one call"

    def save(self, folder: Path) -> None:
        """Save the number of train steps made so far to a file beside a checkpoint."""
        if self._oracle is not None:
            self._oracle.save(folder)

    def load(self, folder: Path) -> None:
        """Continue counting train steps at the number stored beside a checkpoint."""
        self._meter.kept.forget()
        if self._oracle is not None:
            self._oracle.load(folder)

    def write(self, folder: Path, rank: int) -> None:
        """Write the lost updates and the results of update checks to files beside the trace."""
        self._meter.write(folder, rank)
        self._log.starts = self._meter.kept.compared
        self._log.write(folder, rank)


class UpdateProbe(Probe[EngineRun]):
    """Measures and checks the updates of an engine's run, also across its saves and loads.

    Args:
        explains: whether wrong updates are explained.
    """

    def __init__(self, *, explains: bool) -> None:
        self._explains = explains

    def begin(self, run: EngineRun) -> None:
        """Create the watcher of updates for the workload's declared rule."""
        self._watcher = UpdateWatcher(run.workload, run.cell, explains=self._explains)

    def around(self, run: EngineRun, call: str) -> AbstractContextManager[object]:
        """Return a context that checks the update of a train step."""
        if call in STEP_PHASES[1:]:
            return self._watcher.around(run.engine, call, run.step)
        return super().around(run, call)

    def after(self, run: EngineRun, call: str) -> None:
        """Save the number of steps made beside a checkpoint, or go on from that number."""
        if call == "save":
            self._watcher.save(run.job.folder)
        elif call == "load":
            self._watcher.load(run.job.folder)

    def write(self, folder: Path, rank: int) -> None:
        """Write the lost updates, and how the others compare with the rule."""
        self._watcher.write(folder, rank)


def update_probe(job: LayoutJob) -> UpdateProbe | None:
    """Return the probe of a run whose updates are measured and judged; None for others."""
    if not (job.is_whole and job.variant.updates):
        return None
    return UpdateProbe(explains=not job.variant.is_perturbed)
