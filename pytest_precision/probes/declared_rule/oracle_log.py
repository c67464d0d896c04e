"""Store on disk how a run's weight updates compare with the optimizer's rule in fp64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_precision.trace.rank_log import RankLog, RankPart
from pytest_precision.trace.read_back import ReadBack


@dataclass(frozen=True)
class Breach:
    """The worst element of a tensor whose update breaks the optimizer's rule.

    Attributes:
        step: train step.
        order: position of the tensor in causal order.
        kind: what it is.
        name: the logical tensor's name.
        index: of the element.
        expected: what the rule gives.
        got: what the state holds.
        ratio: of the error to its bound.
        group: number of its parameter group.
    """

    step: int
    order: Sequence[int]
    kind: str
    name: str
    index: Sequence[int]
    expected: float
    got: float
    ratio: float
    group: int

    @property
    def when(self) -> tuple[int, ...]:
        """Return a key that sorts broken updates by when they happened."""
        return self.step, *self.order


@dataclass
class OracleLog(RankLog):
    """The result of checking a run's weight updates against the optimizer's rule in fp64.

    Attributes:
        rule: name of the workload's rule.
        shown_by: `phases`, or `call` where one call reduces, clips and updates, or `script`.
        by_l2: whether every step clipped by the L2 norm of all gradients.
        by_loss_scale: whether a dynamic loss scale, if there is one, is an `engine.LossScale`.
        judged: number of updates judged: one a step and piece of a tensor.
        worst: largest error within its bound, as a share of it.
        unjudged: logical tensor to the reason why its updates are not judged.
        silent: why none is; empty where some are.
        breaches: the first update beyond its bound of each kind and tensor, in causal order.
        fits: wrong rules that explain every step with a breach, in words; None before there is one.
        spared: those of them that would have been wrong in another group too, and were not.
        estimates: group of the workload to the options with which its rule explains every step with
            a breach: names with a blank between them to each fitted and declared value.
        groups: number of the workload's groups.
        apart: group of the workload, where it has a breach, to the numbers in which the optimizer's
            options are not the workload's.
        frozen: names of the weights that get no gradient in the workload, and that no group has.
        starts: number of weights that were compared with what the update before them has left: one
            a step and piece of a tensor.
        read_back: those that were that, rounded; the first of each name.
    """

    stem = "oracle"

    rule: str = ""
    shown_by: str = "phases"
    by_l2: bool = True
    by_loss_scale: bool = True
    judged: int = 0
    worst: float = 0.0
    unjudged: dict[str, str] = field(default_factory=dict)
    silent: str = ""
    breaches: list[Breach] = field(default_factory=list)
    fits: list[str] | None = None
    spared: list[str] = field(default_factory=list)
    estimates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    groups: int = 0
    apart: dict[str, list[str]] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    starts: int = 0
    read_back: list[ReadBack] = field(default_factory=list)

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> OracleLog:
        """Make one log of how all ranks' weight updates were checked."""
        log = cls()
        for part in parts:
            log.add(cls._of(part.content))
        return log

    @classmethod
    def absent(cls) -> OracleLog:
        """Return the log of a script, whose updates nobody has checked."""
        return cls(silent="a script declares no optimizer_rule", shown_by="script")

    @classmethod
    def _of(cls, content: dict[str, Any]) -> OracleLog:
        breaches = [Breach(**breach) for breach in content["breaches"]]
        read_back = [ReadBack(**weight) for weight in content["read_back"]]
        return cls(**content | {"breaches": breaches, "read_back": read_back})

    def write(self, folder: Path, rank: int) -> None:
        """Write one rank's comparison of weight updates as JSON into a folder."""
        self.store(folder, rank, asdict(self))

    def add(self, other: OracleLog) -> None:
        """Merge the log of another rank, or of a later part of the run, into this one."""
        self.rule = other.rule
        self.shown_by = other.shown_by
        self.by_l2 = self.by_l2 and other.by_l2
        self.by_loss_scale = self.by_loss_scale and other.by_loss_scale
        self.judged += other.judged
        self.worst = max(self.worst, other.worst)
        self.unjudged |= other.unjudged
        self.silent = self.silent or other.silent
        self.apart = other.apart | self.apart
        self.groups = max(self.groups, other.groups)
        self.frozen = other.frozen or self.frozen
        self.spared = sorted({*self.spared, *other.spared})
        for group, estimates in other.estimates.items():
            first_estimates = self.estimates.get(group, estimates)
            self.estimates[group] = {
                name: first_estimates[name] for name in first_estimates if name in estimates
            }
        self.break_at(other.breaches)
        self.starts += other.starts
        self.note_read_back(other.read_back)
        if other.fits is not None:
            self.fit(other.fits)

    def first(self, judges: Callable[[str, str], bool]) -> Breach | None:
        """Return the first wrong update that the test compares; None if there is none."""
        return next((breach for breach in self.breaches if judges(breach.kind, breach.name)), None)

    def break_at(self, breaches: Iterable[Breach]) -> None:
        """Add updates that break the optimizer's rule; keep the first of each kind and tensor."""
        first: dict[tuple[str, str], Breach] = {}
        for breach in sorted(
            [*self.breaches, *breaches], key=lambda breach: (breach.when, -breach.ratio)
        ):
            first.setdefault((breach.kind, breach.name), breach)
        self.breaches = [*first.values()]

    def note_read_back(self, weights: Iterable[ReadBack]) -> None:
        """Add weights found rounded to bf16 or fp16 between updates; keep the first per name."""
        first: dict[str, ReadBack] = {}
        for weight in sorted([*self.read_back, *weights], key=lambda weight: weight.step):
            first.setdefault(weight.name, weight)
        self.read_back = [*first.values()]

    def fit(self, rules: list[str]) -> None:
        """Keep only the mistakes in `rules`: those that explain the new wrong updates as well."""
        self.fits = rules if self.fits is None else [rule for rule in self.fits if rule in rules]
