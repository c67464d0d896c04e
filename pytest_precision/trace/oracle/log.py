"""The log of the oracle: what it found on each rank, next to the trace, and on all together."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pytest_precision.trace.files import write_whole
from pytest_precision.trace.oracle.judge import Breach
from pytest_precision.trace.stretches import holders


@dataclass
class OracleLog:
    """What the oracle found in one run.

    Attributes:
        rule: name of the workload's rule.
        shown_by: `phases`, or `call` where one call reduces, clips and updates, or `script`.
        by_l2: whether every step clipped by the L2 norm of all gradients.
        judged: number of updates judged: one a step and piece of a tensor.
        worst: largest error within its bound, as a share of it.
        unjudged: logical tensor to the reason why its updates are not judged.
        silent: why none is; empty where some are.
        breach: the first update beyond its bound.
        fits: wrong rules that explain every step with a breach, in words; None before there is one.
        apart: in which numbers the optimizer's options are not the workload's.
    """

    rule: str = ""
    shown_by: str = "phases"
    by_l2: bool = True
    judged: int = 0
    worst: float = 0.0
    unjudged: dict[str, str] = field(default_factory=dict)
    silent: str = ""
    breach: Breach | None = None
    fits: list[str] | None = None
    apart: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, *world_sizes: int) -> OracleLog:
        """Read the logs of all ranks in all stretches together; a script has none."""
        paths = [_path(place, rank) for _, place, rank in holders(folder, world_sizes)]
        if not paths[0].exists():
            return cls(silent="a script declares no optimizer_rule", shown_by="script")
        log = cls()
        for path in paths:
            log.add(cls._of(json.loads(path.read_text())))
        return log

    @classmethod
    def _of(cls, data: dict[str, object]) -> OracleLog:
        log = cls(**data)  # type: ignore[arg-type]
        if log.breach is not None:
            log.breach = Breach(**log.breach)  # type: ignore[arg-type]
        return log

    def write(self, folder: Path, rank: int) -> None:
        """Write the log of one rank."""
        write_whole(_path(folder, rank), asdict(self))

    def add(self, other: OracleLog) -> None:
        """Add what another rank found."""
        self.rule, self.shown_by = other.rule, other.shown_by
        self.by_l2 = self.by_l2 and other.by_l2
        self.judged += other.judged
        self.worst = max(self.worst, other.worst)
        self.unjudged |= other.unjudged
        self.silent = self.silent or other.silent
        if other.breach is None:
            return
        if self.breach is None or other.breach.when < self.breach.when:
            self.breach, self.apart = other.breach, other.apart
        if other.fits is not None:
            self.fit(other.fits)

    def fit(self, rules: list[str]) -> None:
        """Keep those of the wrong rules that explain another step, or another rank, as well."""
        self.fits = rules if self.fits is None else [rule for rule in self.fits if rule in rules]


def _path(folder: Path, rank: int) -> Path:
    return folder / f"oracle{rank}.json"
