"""Record which of the user's axes a test reads from its cell, to find misspelt axes.

An axis that nothing reads changes nothing, and most often its name is misspelt. A cell travels to
ranks as a copy, so each process notes what is read there, and a trace has what its ranks have read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_open: list[set[str]] = []
"""The sets of this process that are being filled, the outermost first."""


@contextmanager
def axes_read() -> Iterator[set[str]]:
    """Collect which user-defined matrix axes the `with` block reads, to find misspelt ones."""
    read_axes: set[str] = set()
    _open.append(read_axes)
    try:
        yield read_axes
    finally:
        _open[:] = [axis_set for axis_set in _open if axis_set is not read_axes]


def so_far() -> tuple[str, ...]:
    """Return the user's axes that were read so far in the innermost open `axes_read` block."""
    return tuple(sorted(_open[-1])) if _open else ()


def note(names: Iterable[str]) -> None:
    """Add axis names to the set of each open `axes_read` block."""
    names = tuple(names)
    for read_axes in _open:
        read_axes.update(names)
