"""Ranks that run the code of several tests, one group a world size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from catalogue import Listed

from pytest_precision.ranks import ImportPath, RankPool
from pytest_precision.ranks.needs import Needs, code_of


class SharedRanks(RankPool):
    """Imports the code of all given defects before the first job, and runs each on the same ranks.

    A session has new ranks for each code of the user's, which may change what other code finds
    there. The defects that are planted are engines of their own, and change nothing else.
    """

    def __init__(self, entries: Iterable[Listed]) -> None:
        super().__init__(timeout=120)
        paths = (
            code_of(*map(ImportPath.of, (entry.layout, entry.against, entry.workload)))
            for entry in entries
        )
        self._code = tuple(dict.fromkeys(path for found in paths for path in found))

    def run(self, world_size: int, *job: Any, needs: Needs | None = None, **more: Any) -> list[Any]:
        """Run a job on ranks that have run others, whatever code it is of."""
        shared = replace(needs or Needs(), code=self._code)
        return super().run(world_size, *job, needs=shared, **more)
