"""Have a loop judged by what it shows itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.probes.by_itself.judged_log import JudgedLog, RankFact, Remark, judged_rows
from pytest_precision.probes.by_itself.judges import judges
from pytest_precision.recorders.loop_job import LoopJob
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.scripts.steps import Steps


class JudgedLoop:
    """Tells judgements what a loop trains, by the names that its recorder knows.

    Args:
        run: follows the loop.
    """

    seeds: tuple[int, ...] = ()

    def __init__(self, run: Steps) -> None:
        self._run = run

    @property
    def step(self) -> int:
        """Return the number of the train step that runs."""
        return self._run.step

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, parameter) for each parameter of the models."""
        return self._run.reader.names.parameters()

    def name_of(self, subject: Tensor | nn.Module) -> str:
        """Return a name, in which a module may have a placeholder, or words for what has none."""
        names = self._run.reader.names
        if isinstance(subject, Tensor):
            return names.of(subject) or "a tensor that no module holds"
        parts = (part for root in names.roots for part in names.modules(root))
        path = next((path for path, module in parts if module is subject), "")
        return path or f"a {type(subject).__name__}"

    def declares_updates(self, optimizer: Optimizer) -> bool:
        """Return False: a script declares no rule."""
        return False


class AloneLoopProbe(Probe[Steps]):
    """Logs what a loop shows to be wrong by itself, from its first run to the last one."""

    def __init__(self) -> None:
        self._remarks: list[Remark] = []
        self._facts: list[RankFact] = []
        self._runs = 0

    def begin(self, run: Steps) -> None:
        """Have torch's hooks report to the judgements, too."""
        self._judges = [judge(JudgedLoop(run)) for judge in judges()]
        run.listeners += self._judges
        self._runs += 1

    @contextmanager
    def around(self, run: Steps, call: str) -> Iterator[None]:
        """Judge the loop when it is over, and name what was found in it."""
        yield
        if call != "loop":
            return
        settled = run.reader.names.settled
        for judge in self._judges:
            judge.over()
            # Each run counts its places from the first one on, and a later one is at later steps.
            self._facts += (
                replace(fact, place=f"{fact.place} in run {self._runs}") for fact in judge.facts
            )
            # Before the first update a name has a placeholder for the path of its module.
            self._remarks += (
                replace(remark, words=settled(remark.words)) for remark in judge.remarks
            )

    def write(self, folder: Path, rank: int) -> None:
        """Write what was found."""
        JudgedLog.store(folder, rank, judged_rows(self._remarks, self._facts))


def loop_probe(job: LoopJob) -> AloneLoopProbe:
    """Return the probe of a loop, in a cell or under `record`."""
    return AloneLoopProbe()
