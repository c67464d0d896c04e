"""Store on disk how a run's losses and gradients compare with recomputed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_precision.trace.rank_log import RankLog, RankPart

RightSteps = dict[str, tuple[int, float]]
"""Digest of a step to the number of its losses and gradients, and their largest error."""


@dataclass(frozen=True)
class GradientBreach:
    """A loss or gradient that is too far from the recomputed one.

    Attributes:
        step: train step.
        kind: `loss`, `grad` or `reduced_grad`.
        name: of the logical tensor.
        rank: whose sum it is; None for what all ranks have.
        off: norm of the difference, as a share of the plain one.
        bound: what rounding explains of it.
        words: which wrong rule fits, or nothing.
    """

    step: int
    kind: str
    name: str
    rank: int | None
    off: float
    bound: float
    words: str = ""


@dataclass
class GradientLog(RankLog):
    """The result of comparing a run's losses and gradients with recomputed ones.

    Rank 0 judges those of all ranks.

    Attributes:
        judged: number of losses and gradients.
        worst: largest error within its bound, as a share of it.
        silent: why none was judged; empty where some were.
        breaches: of the first step that has any, in causal order.
        right: digest of a step that has none, with all that it was judged by, to its number and
            its largest error: another run that shows the same need not be judged again.
        sums: digest of what a step starts from to the file with what the plain loop gives there: it
            gives the same to another run that starts from the same. A log on disk has names.
    """

    stem = "gradients"
    of_rank_0 = True

    judged: int = 0
    worst: float = 0.0
    silent: str = ""
    breaches: list[GradientBreach] = field(default_factory=list)
    right: RightSteps = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> GradientLog:
        """Make one log of how losses and gradients of each part of a run compare."""
        log = cls()
        for folder, _, content in parts:
            breaches = [GradientBreach(**breach) for breach in content["breaches"]]
            right = {step: (judged, worst) for step, (judged, worst) in content["right"].items()}
            sums = {start: str(folder / name) for start, name in content["sums"].items()}
            log.add(cls(**content | {"breaches": breaches, "right": right, "sums": sums}))
        return log

    @classmethod
    def absent(cls) -> GradientLog:
        """Return the log of a script, whose gradients nobody has recomputed."""
        return cls(silent="a script has no workload to compute its gradients by")

    def add(self, other: GradientLog) -> None:
        """Merge the comparison of later steps into this log."""
        self.judged += other.judged
        self.worst = max(self.worst, other.worst)
        self.silent = self.silent or other.silent
        self.breaches = self.breaches or other.breaches
        self.right |= other.right
        self.sums |= other.sums

    def write(self, folder: Path) -> None:
        """Write the comparison of losses and gradients as JSON into a folder."""
        self.store(folder, 0, asdict(self))

    def first(self, judges: Callable[[str, str], bool]) -> GradientBreach | None:
        """Return the first wrong loss or gradient that the test compares; None if there is none."""
        return next(
            (b for b in self.breaches if judges(b.kind, b.name) and judges("grad", b.name)), None
        )
