"""The base of judgements: listeners to torch's calls in a run, which find what no run may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.probes.by_itself.judged_log import RankFact, Remark
from pytest_precision.recorders.torch_hooks import LoopEvents


class JudgedRun(Protocol):
    """What a judgement may ask of a run, whether an engine or a loop makes it."""

    @property
    def step(self) -> int:
        """Return the number of the train step that runs."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that the recorder gives to every rank, and no code of the user's."""

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, parameter) for each parameter of the models."""

    def name_of(self, subject: Tensor | nn.Module) -> str:
        """Return the name of a tensor or a module, or words for one that has none."""

    def declares_updates(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer's updates are held to a rule that the run declares."""


class RunJudge(LoopEvents):
    """Watches a run for one mistake, and describes each that it finds in words.

    Args:
        run: tells what runs.

    Attributes:
        rule: name of the mistake.
        kind: what is wrong by it, which a test may leave unchecked.
        fails: whether a check fails by it; else it is a note.
        remarks: what was found.
        facts: what ranks are held against each other by.
    """

    rule: ClassVar[str]
    kind: ClassVar[str]
    fails: ClassVar[bool] = True

    def __init__(self, run: JudgedRun) -> None:
        self.run = run
        self.remarks: list[Remark] = []
        self.facts: list[RankFact] = []
        self._told: set[str] = set()

    def over(self) -> None:
        """Do nothing here; called when the run is over, to judge it as a whole."""

    def find(self, words: str, subject: Tensor | nn.Module | None = None, more: int = 0) -> None:
        """Note a mistake, the first time that it is made.

        Args:
            words: what happened, with `{name}` for the subject and `{step}` for the step.
            subject: the tensor or module that it happened to.
            more: how many others it happened to at the same time.
        """
        if words in self._told:
            return
        self._told.add(words)
        name = "" if subject is None else self.run.name_of(subject)
        name += f" (and {more} more)" if more else ""
        text = words.format(name=name, step=self.run.step)
        self.remarks.append(Remark(self.rule, self.kind, text, fails=self.fails))

    def hold(self, words: str, *, place: str, digest: str, beside: str = "") -> None:
        """Log what this rank did, to be held against what other ranks did at the same place.

        Args:
            words: what is said if both cannot be right, with `{step}` for the step.
            place: names the place.
            digest: of what it did.
            beside: of what it did it for, which must differ where `digest` does; if there is none,
                all ranks must do the same.
        """
        remark = Remark(self.rule, self.kind, words.format(step=self.run.step), fails=self.fails)
        self.facts.append(RankFact(remark, place, digest, beside))


def has_peers() -> bool:
    """Return whether there are other ranks to hold this one against."""
    return dist.is_initialized() and dist.get_world_size() > 1
