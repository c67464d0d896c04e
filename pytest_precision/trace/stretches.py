"""Stretches on disk: which stretches of a sequence are recorded, and where each of them lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.stretches import Stretch
from pytest_precision.trace.moment import Window


def recorded_stretches(cell: Cell, window: Window | None) -> tuple[Stretch, ...]:
    """Return the stretches of a cell's sequence that begin before the window ends."""
    return tuple(
        stretch for stretch in cell.stretches if window is None or stretch.done <= window.last
    )


def folder_of(folder: Path, number: int) -> Path:
    """Return where the files of a stretch lie; those of the first one lie in `folder` itself."""
    return folder / f"stretch{number}" if number else folder


def holders(folder: Path, world_sizes: tuple[int, ...]) -> Iterator[tuple[int, Path, int]]:
    """Yield stretch, folder and rank of all that have written, stretch by stretch in rank order."""
    for number, world_size in enumerate(world_sizes):
        yield from ((number, folder_of(folder, number), rank) for rank in range(world_size))
