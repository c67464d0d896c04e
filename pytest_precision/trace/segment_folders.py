"""Paths of the folders in which the parts of a run between restarts are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import Segment
from pytest_precision.trace.moment import Window


def recorded_segments(cell: Cell, window: Window | None) -> tuple[Segment, ...]:
    """Return a run's segments (parts between restarts) up to the last step to be recorded."""
    return tuple(
        segment for segment in cell.segments if window is None or segment.done <= window.last
    )


def folder_of(folder: Path, number: int) -> Path:
    """Return the folder of part `number` of a run: `folder` for 0, else a folder inside it."""
    return folder / f"segment{number}" if number else folder


def holders(folder: Path, world_sizes: tuple[int, ...]) -> Iterator[tuple[int, Path, int]]:
    """Yield (part number, folder, rank) for each rank of each part of a run between restarts."""
    for number, world_size in enumerate(world_sizes):
        yield from ((number, folder_of(folder, number), rank) for rank in range(world_size))
