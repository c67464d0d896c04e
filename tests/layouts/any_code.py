"""Ranks that run the code of all tests of layouts and regressions, one group a world size.

A session has new ranks for each layout and workload of the user's, whose code may change what other
code finds there. Those of these tests are engines and models of their own, and change nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from pytest_precision.ranks import RankPool
from pytest_precision.ranks.needs import Needs


@dataclass(frozen=True, slots=True, eq=False)
class NeedsOfAnyCode(Needs):
    """What a job needs of ranks on which other code may have run: they import its own before it."""

    def _counting(self) -> tuple[Any, ...]:
        # No sequence of jobs is promised more than another one by `pure`.
        none = replace(self, code=(), collected=(), pure=True)
        return tuple(getattr(none, field.name) for field in fields(none))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NeedsOfAnyCode) and self._counting() == other._counting()

    def __hash__(self) -> int:
        return hash(self._counting())

    @classmethod
    def of_job(cls, needs: Needs) -> NeedsOfAnyCode:
        """Return needs that are the same but for this."""
        return cls(**{field.name: getattr(needs, field.name) for field in fields(needs)})


class RanksOfAnyCode(RankPool):
    """Runs each job on the same ranks, whatever code it is of."""

    def run(self, world_size: int, *job: Any, needs: Needs | None = None, **more: Any) -> list[Any]:
        """Run a job on ranks that have run others."""
        return super().run(world_size, *job, needs=NeedsOfAnyCode.of_job(needs or Needs()), **more)

    def end_check(self) -> None:
        """Keep all groups: no later test has other files."""


@cache
def _shared() -> RanksOfAnyCode:
    return RanksOfAnyCode()


def of_any_code(ranks: RankPool) -> RankPool:
    """Return the ranks that the tests of this process share, which end with it.

    Args:
        ranks: what a session would take; those of a GPU, and those in this process, stay its own.
    """
    return _shared() if (ranks.mode, ranks.device) == ("reuse", "cpu") else ranks
