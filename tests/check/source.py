"""A place outside its arguments from which a side may take a number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Source(NamedTuple):
    """One way to keep a number, and to read it.

    Attributes:
        write: has the source say a number from now on; a test calls it.
        read: returns the number; a side calls it on its rank.
    """

    write: Callable[[Path, float], object]
    read: Callable[[Path], float]


def text(name: str) -> Callable[[Path, float], object]:
    """Return a function that writes the number into a text file of this name in the folder."""
    return lambda folder, value: (folder / name).write_text(str(value), encoding="utf-8")


def text_in(folder: Path, name: str = "number") -> float:
    """Return the number in a text file of a folder."""
    return float((folder / name).read_text(encoding="utf-8"))
