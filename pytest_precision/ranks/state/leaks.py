"""Find process-wide state that a job changed and did not restore, and warn about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from pytest_precision._visible import visible
from pytest_precision.errors import PrecisionLeakWarning

ABSENT = "absent"


class Leak(NamedTuple):
    """One piece of process-wide state that a function call left changed, as picklable text.

    Attributes:
        name: name of the state.
        change: how it changed from the start of the job to its end.
    """

    name: str
    change: str

    def __str__(self) -> str:
        return f"{self.name} {self.change}"

    def is_one_of(self, patterns: Sequence[str]) -> bool:
        """Return whether the name of the changed state matches an `fnmatch` pattern."""
        return any(fnmatchcase(self.name, pattern) for pattern in patterns)


def between(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[Leak, ...]:
    """Return which process-wide settings differ between two readings of them.

    A reading that is itself a mapping is compared entry by entry.
    """
    return tuple(_differences(before, after)) if before != after else ()


def warn(
    doing: str, leaks: Sequence[Sequence[Leak]], then: str = "Its ranks are discarded"
) -> bool:
    """Warn about the state that a function call left changed on its ranks.

    Args:
        doing: name of the function that ran.
        leaks: leaks of each rank, in rank order.
        then: sentence on the consequence for the processes.

    Returns:
        Whether there were leaks; such a process must not run another job.

    Raises:
        PrecisionLeakWarning: the warning filters turn it into an error.
    """
    ranks_of: dict[Leak, list[int]] = {}
    for rank, left in enumerate(leaks):
        for leak in left:
            ranks_of.setdefault(leak, []).append(rank)
    if not ranks_of:
        return False
    lines = (f"\n  rank {', '.join(map(str, ranks))}: {leak}" for leak, ranks in ranks_of.items())
    text = (
        f"{doing} left process-global state behind:{''.join(lines)}\n"
        f"expected it to be restored. {then}; restore it in the function, or declare it with "
        "layouts.may_leave or precision_may_leave."
    )
    warnings.warn(visible(text), PrecisionLeakWarning, stacklevel=2)
    return True


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[Leak]:
    for name in {**before, **after}:
        old_reading, new_reading = before.get(name, ABSENT), after.get(name, ABSENT)
        if old_reading == new_reading:
            continue
        if isinstance(old_reading, Mapping) and isinstance(new_reading, Mapping):
            for leak in _differences(old_reading, new_reading):
                yield leak._replace(name=f"{name} {leak.name}")
        else:
            yield Leak(name, f"was {short_text(old_reading)}, is {short_text(new_reading)}")


def short_text(value: object) -> str:
    """Return a value as text, of which at most the first 200 characters are kept."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
