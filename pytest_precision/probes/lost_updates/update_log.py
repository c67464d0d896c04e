"""Store how many weight updates rounding lost, per step and tensor.

It lies next to the trace of each rank; agreement of the two sides does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_precision.trace.rank_log import RankPart, SealedLog
from pytest_precision.trace.sound import (
    sound_integer,
    sound_list,
    sound_object,
    sound_texts,
    texts,
    unsound,
)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many weight updates rounding has lost, and how large they were.

    All attributes add up over shards and steps. Elements whose exact update or weight is not finite
    are left out.

    Attributes:
        updates: number of elements whose exact update is not zero.
        lost: number of these whose effective weight did not move.
        size: sum of the magnitudes of the exact updates.
        lost_size: the same sum over those that are lost.
        exact: sum of the squares of the exact updates.
        error: sum of the squares of the differences between the exact updates and the actual ones.
    """

    updates: int = 0
    lost: int = 0
    size: float = 0.0
    lost_size: float = 0.0
    exact: float = 0.0
    error: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.updates + other.updates,
            self.lost + other.lost,
            self.size + other.size,
            self.lost_size + other.lost_size,
            self.exact + other.exact,
            self.error + other.error,
        )

    @property
    def share(self) -> float:
        """Return the share of updates that left their weight unmoved; 0 without updates."""
        return self.lost / self.updates if self.updates else 0.0

    @property
    def lost_by_size(self) -> float:
        """Return the sum of lost updates' magnitudes, divided by that of all updates.

        This tells runs apart: at the end of a decaying schedule the updates are so small that fp32
        loses most of them too, and little is lost with them.
        """
        return self.lost_size / self.size if self.size else 0.0

    @property
    def absorbed(self) -> float:
        """Return the L2 norm of the updates' rounding errors, relative to that of the updates.

        It is near 1 where updates vanish, and above 1 where those that do not are rounded up.
        """
        return float((self.error / self.exact) ** 0.5) if self.exact else 0.0


@dataclass
class UpdateLog(SealedLog):
    """How many weight updates rounding lost in a run, per step and tensor.

    Attributes:
        steps: train step to logical tensor to its counts.
        unmeasured: logical tensor to the reason why its updates cannot be measured.
    """

    stem = "updates"

    steps: dict[int, dict[str, Counts]] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> UpdateLog:
        """Make one log of what all ranks have lost; a shard that several ranks hold counts once."""
        log = cls()
        counted: set[tuple[int, str, str]] = set()
        for _, _, content in parts:
            log.unmeasured |= content["unmeasured"]
            counted_of_rank = set()
            for step, rows in content["steps"]:
                names = log.steps.setdefault(step, {})
                for number, *counts in rows:
                    name, place = content["pieces"][number]
                    if (step, name, place) not in counted:
                        names[name] = names.get(name, Counts()) + Counts(*counts)
                        counted_of_rank.add((step, name, place))
            counted |= counted_of_rank
        return log

    @classmethod
    def nothing(cls) -> dict[str, Any]:
        """Return the content of the log of a rank that measured no update."""
        return {"pieces": [], "steps": [], "unmeasured": {}}

    @classmethod
    def expect_sound(cls, content: Any) -> None:
        """Raise unless a rank's parsed log of lost updates is well formed.

        Raises:
            ValueError: it names what cannot be.
        """
        sound_object("a log of updates", content, ("pieces", "steps", "unmeasured"))
        sound_texts("unmeasured", content["unmeasured"])
        pieces = [
            texts("a piece", sound_list("a piece", piece, 2))
            for piece in sound_list("pieces", content["pieces"])
        ]
        for pair in sound_list("steps", content["steps"]):
            step, rows = sound_list("a step", pair, 2)
            sound_integer("a step", step)
            for row in sound_list("rows", rows):
                _expect_counts(row, len(pieces))

    def totals(self) -> dict[str, Counts]:
        """Return, per tensor, how many updates were lost over the whole run."""
        totals: dict[str, Counts] = {}
        for names in self.steps.values():
            for name, counts in names.items():
                totals[name] = totals.get(name, Counts()) + counts
        return totals


def _expect_counts(row: Any, pieces: int) -> None:
    number, updates, lost, *sums = sound_list("counts", row, 7)
    sound_integer("the number of a piece", number, 0, pieces - 1)
    sound_integer("lost updates", lost, 0, sound_integer("updates", updates))
    for figure in sums:
        if type(figure) is not float or not 0 <= figure < math.inf:
            raise unsound("a sum to be a number that is finite and not negative", figure)
