"""Have an engine's run judged by what it shows itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.matrix.tensor_key import unwrapped
from pytest_precision.probes.by_itself.judged_log import JudgedLog, judged_rows
from pytest_precision.probes.by_itself.judges import judges
from pytest_precision.probes.declared_rule.oracle.claims import has_declared_class
from pytest_precision.recorders import torch_hooks
from pytest_precision.recorders.engine_run import EngineRun
from pytest_precision.recorders.layout_job import LayoutJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.run_environment import FRESH_SEED, SEED


class JudgedEngine:
    """Tells judgements what an engine trains, by the names that it shows.

    Args:
        run: has the engine.
    """

    seeds = (SEED, FRESH_SEED)

    def __init__(self, run: EngineRun) -> None:
        self._run = run

    @property
    def step(self) -> int:
        """Return the number of the train step that runs."""
        return self._run.step

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, parameter) for each parameter of the model."""
        named = self._run.engine.model.named_parameters()
        return ((unwrapped(name), parameter) for name, parameter in named)

    def name_of(self, subject: Tensor | nn.Module) -> str:
        """Return the name of a tensor or a module, or words for one that has none."""
        model = self._run.engine.model
        if isinstance(subject, Tensor):
            names = (name for name, parameter in self.parameters() if parameter is subject)
            return next(names, "a tensor that no module holds")
        paths = (path for path, module in model.named_modules() if module is subject)
        return unwrapped(next(paths, "")) or f"a {type(subject).__name__}"

    def declares_updates(self, optimizer: Optimizer) -> bool:
        """Return whether the workload declares a rule, and the optimizer's class is one of it."""
        declared_optimizer_rule = self._run.workload.optimizer_rule
        return declared_optimizer_rule is not None and has_declared_class(optimizer)


class AloneEngineProbe(Probe[EngineRun]):
    """Logs what an engine's run shows to be wrong by itself, also across loads."""

    def begin(self, run: EngineRun) -> None:
        """Make the judgements of the run."""
        self._judges = [judge(JudgedEngine(run)) for judge in judges()]

    def around(self, run: EngineRun, call: str) -> AbstractContextManager[object]:
        """Have torch's hooks report to the judgements in a phase of a train step."""
        return torch_hooks.opened(*self._judges) if call in STEP_PHASES else nullcontext()

    def write(self, folder: Path, rank: int) -> None:
        """Write what was found."""
        for judge in self._judges:
            judge.over()
        remarks = [remark for judge in self._judges for remark in judge.remarks]
        facts = [fact for judge in self._judges for fact in judge.facts]
        JudgedLog.store(folder, rank, judged_rows(remarks, facts))


def engine_probe(job: LayoutJob) -> AloneEngineProbe | None:
    """Return the probe of a whole run that nothing perturbs; None for others."""
    return AloneEngineProbe() if job.is_whole and not job.variant.is_perturbed else None
