"""On ranks: a side is recorded by groups of ranks, one for each part of its sequence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_precision.check.side import Side
from pytest_precision.errors import RanksSkipped, expected_but_got
from pytest_precision.ranks.blame import require_observations
from pytest_precision.ranks.pool import RankPool
from pytest_precision.ranks.state.sources import Sources
from pytest_precision.trace.moment import Window
from pytest_precision.trace.stretches import recorded


@dataclass(frozen=True)
class OnRanks:
    """Records sides on the session's groups of ranks.

    Attributes:
        ranks: the session's rank groups.
        timeout: seconds that one job may take.
    """

    ranks: RankPool
    timeout: float

    def __call__(self, run: Side, window: Window | None, folder: Path) -> Sources:
        """Record a side into a folder; return what its ranks have read.

        Args:
            run: the side.
            window: the steps whose values are kept; digests of all steps without it.
            folder: where to.

        Raises:
            RanksSkipped: the sequence goes on in new processes, and there is one process alone.
        """
        if self.ranks.mode == "inline" and any(
            stretch.in_new_processes for stretch in run.cell.stretches
        ):
            raise RanksSkipped(
                expected_but_got(
                    f"new processes, with which sequence={run.cell.sequence!r} goes on,",
                    "--precision-ranks=inline, which has the calling process alone",
                    "leave it out",
                )
            )
        sources = Sources()
        for stretch in recorded(run.cell, window):
            counts = self.ranks.run(
                stretch.world_size,
                Side.record,
                run,
                str(folder),
                window,
                stretch,
                timeout=self.timeout,
                needs=run.needs_of(stretch),
                name=run.layout.name,
                sources=sources,
            )
            require_observations(counts, run.layout.name)
        return sources
