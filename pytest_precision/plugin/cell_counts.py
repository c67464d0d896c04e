"""CellCounts: how many cells a session has, as numbers and as the line above its tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pytest_precision.check.transformer_engine import announced
from pytest_precision.options import Settings
from pytest_precision.plugin.supported import untested_torch
from pytest_precision.ranks.process.preloaded import installed_modules
from pytest_precision.report.versions import version_of


class CellCounts(NamedTuple):
    """Numbers of cells in a session, as plain data.

    Attributes:
        made: number of cells of all matrix tests, selected or not.
        cells: number of cells that are left to run.
        tests: number of tests that these cells belong to.
        coverages: different values of the option `coverage` among these tests.
        not_made: reason to number of axis combinations that make no sense and became no cell.
        formats: what is known of the backends of the cells that quantize.
    """

    made: int = 0
    cells: int = 0
    tests: int = 0
    coverages: Sequence[str] = ()
    not_made: Mapping[str, int] = {}
    formats: Sequence[str] = ()

    def line(self, settings: Settings) -> str:
        """Return the line on what is about to run, how it was chosen, and what was not made.

        Args:
            settings: settings of the session.
        """
        how = [f"coverage {', '.join(self.coverages)}"] if self.coverages else []
        how += [f"select {axis}={','.join(values)}" for axis, values in settings.select]
        how += ["shard {}/{}".format(*settings.shard)] if settings.shard != (1, 1) else []
        head = f"{_counted(self.cells, 'cell')} of {_counted(self.tests, 'test')}"
        parts = [f"precision: {head}" + (f" ({', '.join(how)})" if how else "")]
        parts += _preloaded(settings.preload)
        parts += [f"{number} not made: {reason}" for reason, number in self.not_made.items()]
        parts += [*self.formats, *announced(settings)]
        return "; ".join([*parts, *untested_torch(version_of("torch"))])


def _preloaded(names: Sequence[str]) -> Iterator[str]:
    """Yield what is imported before ranks start, and what cannot be."""
    there = installed_modules(names)
    if there:
        yield f"{', '.join(there)} preloaded"
    if missing := [name for name in names if name not in there]:
        yield f"{', '.join(missing)} not installed, so not preloaded"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
