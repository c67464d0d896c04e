"""First step: run an engine's first train step, and compute the same step in fp64 beside it.

What a side rounds shows as its distance from the exact step, whoever it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_precision.engine.engine import Engine
from pytest_precision.engine.observation import Observation
from pytest_precision.matrix.cell import Cell
from pytest_precision.probes.accuracy.step_accuracy import BesideExact, StepAccuracy
from pytest_precision.probes.declared_rule.oracle.plan import UpdatePlan
from pytest_precision.probes.declared_rule.oracle.update import NO_ROUNDING, Roundings, State
from pytest_precision.probes.declared_rule.oracle.update_oracle import CLIP_EPS
from pytest_precision.probes.gradients.gradient_probe import GradientProbe
from pytest_precision.probes.gradients.plain import Gradients, PlainLoop, Sums
from pytest_precision.probes.gradients.shown_pieces import ShownStep, whole_tensors
from pytest_precision.probes.races.perturbation_probe import PerturbationProbe
from pytest_precision.recorders.data_probe import DataProbe
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.weights import Weight
from pytest_precision.trace.moment import Window
from pytest_precision.workloads.base import Workload

FIRST_STEP = Window(1, 1)
"""The steps that are run."""


def record_first_step(job: LayoutJob) -> int:
    """Run an engine's first train step, and store its gradients and updates beside fp64 ones.

    Returns:
        a number above 0, as `record_engine` does.
    """
    rank = dist.get_rank()
    probe = FirstStepProbe()
    run = EngineRun(job._replace(window=FIRST_STEP), (DataProbe(), probe, PerturbationProbe()))
    run.run()
    ranks = probe.oracle.gathered(rank)
    folder = job.place()
    if rank == 0 and run.step:
        silent = probe.oracle.silent
        accuracy = (
            StepAccuracy(silent=dict.fromkeys(OF_A_STEP, silent))
            if silent
            else accuracy_of(run.workload, run.cell, [steps[0] for steps in ranks])
        )
        accuracy.write(folder)
    return 1


OF_A_STEP = ("gradients", "updates")
"""What a step makes."""


class FirstStepProbe(GradientProbe):
    """Stores also the optimizer's weights around their update, and writes nothing by itself."""

    @contextmanager
    def around(self, run: EngineRun, call: str) -> Iterator[None]:
        """Store what belongs to a call of the first step."""
        updates = call == "optimizer_step"
        if updates:
            self.oracle.updating(lambda: effective_weights(run.engine))
        with super().around(run, call):
            yield
        if updates:
            self.oracle.updating(lambda: effective_weights(run.engine))


def accuracy_of(workload: Workload, cell: Cell, ranks: list[ShownStep]) -> StepAccuracy:
    """Return a step's gradients and updates with fp64 ones, or why the fp64 step failed.

    See `beside_exact` for the arguments.
    """
    devices = [torch.cuda.current_device()] if cell.device == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            return beside_exact(workload, cell, ranks)
        except Exception as error:  # of a model that only its layout can call
            words = f"the step in fp64 raised {type(error).__name__}: {error}"
            return StepAccuracy(silent=dict.fromkeys(OF_A_STEP, words))


@torch.no_grad()
def effective_weights(engine: Engine) -> list[Observation]:
    """Return this rank's shards of the optimizer's weights, at full precision."""
    return [piece for weight in Weight.of(engine) for piece in weight.pieces(weight.effective())]


def beside_exact(workload: Workload, cell: Cell, ranks: list[ShownStep]) -> StepAccuracy:
    """Return a step's gradients and updates, each paired with that of an fp64 step.

    Args:
        workload: computes it once more.
        cell: where it was trained.
        ranks: what each rank shows of it.
    """
    first_shown_step = ranks[0]
    loop = PlainLoop(workload, cell, exact=True)
    weights = whole_tensors([weight for step in ranks for weight in step.weights])
    lacking = loop.lacking(weights, first_shown_step.buffers)
    if lacking:
        words = f"its engine shows no whole {lacking[0]}"
        return StepAccuracy(silent=dict.fromkeys(OF_A_STEP, words))
    loop.put(weights, first_shown_step.buffers)
    exact_gradients = Sums.of(loop.microbatches(first_shown_step.step), 1).total
    silent: dict[str, str] = {}
    reduced_tensors = whole_tensors([gradient for step in ranks for gradient in step.reduced])
    gradients = {
        name: BesideExact(actual_tensor / first_shown_step.scale, exact_gradients[name])
        for name, actual_tensor in reduced_tensors.items()
        if name in exact_gradients
    }
    if not gradients:
        silent["gradients"] = "its engine shows no reduced gradients"
    updates: dict[str, BesideExact] = {}
    if workload.optimizer_rule is None:
        silent["updates"] = f"{type(workload).__name__} declares no optimizer_rule"
    elif callable(workload.clip):
        silent["updates"] = f"{type(workload).__name__} clips by a rule of its own"
    else:
        earlier_tensors, later_tensors = (
            whole_tensors([weight for step in ranks for weight in step.updated[number]])
            for number in (0, 1)
        )
        plan = UpdatePlan(workload, workload.optimizer_rule, cell)
        moved_tensors = exact_updates(plan, exact_gradients, earlier_tensors, workload.max_norm)
        updates = {
            name: BesideExact(later_tensors[name] - earlier_tensors[name], exact_update)
            for name, exact_update in moved_tensors.items()
        }
    return StepAccuracy({"gradients": gradients, "updates": updates}, silent)


def exact_updates(
    plan: UpdatePlan, gradients: Gradients, weights: dict[str, Tensor], max_norm: float | None
) -> dict[str, Tensor]:
    """Return the first update of each weight, computed in fp64 by the optimizer's rule.

    Args:
        plan: the rule of the workload, and the numbers of its groups.
        gradients: exact ones.
        weights: before the update.
        max_norm: to which gradients are clipped; None for no clipping.
    """
    norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
    factor = 1.0 if max_norm is None else min(1.0, max_norm / (norm + CLIP_EPS))
    moments = plan.formula.moments
    storage = Roundings((NO_ROUNDING,) * len(moments), *[NO_ROUNDING] * 3)
    moved_tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name in gradients and name in plan.groups:
            scalars = plan.formula.arithmetics[0](plan.at(0)[plan.groups[name]], 1)
            zero = (torch.zeros_like(weight),) * len(moments)
            old_state = State(zero, weight, gradients[name] * factor)
            moved_tensors[name] = scalars.stepped(old_state, storage)[-1].exact - weight
    return moved_tensors
