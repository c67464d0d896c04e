"""Statuses: how a cell ended, with pytest's expectations taken into account."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Status(NamedTuple):
    """How one status is shown.

    Attributes:
        mark: one ASCII character, shown in a grid.
        word: word in the line of counts; pytest's own if it has one.
        colour: a markup name of pytest's terminal writer.
        failing: whether the status fails the test.
    """

    mark: str
    word: str
    colour: str
    failing: bool


STATUSES = {
    "error": Status("E", "error", "red", failing=True),
    "fail": Status("F", "failed", "red", failing=True),
    "vacuous": Status("V", "vacuous", "red", failing=True),
    "xpass": Status("X", "xpassed", "yellow", failing=False),
    "xfail": Status("x", "xfailed", "yellow", failing=False),
    "skip": Status("s", "skipped", "yellow", failing=False),
    "partial": Status("~", "passed in part", "green", failing=False),
    "pass": Status(".", "passed", "green", failing=False),
}
"""Worst first: the outcomes of a verdict; `xpass` and `xfail` for what pytest expected; and
`partial` for a pass under another criterion than bitwise, or without all kinds."""

PASSING = ("partial", "pass")

FAILING = tuple(name for name, status in STATUSES.items() if status.failing)

_RANK = {name: rank for rank, name in enumerate(STATUSES)}


def worst(statuses: Iterable[str]) -> str:
    """Return the worst of one or more statuses, which one place in a grid shows."""
    return min(statuses, key=_RANK.__getitem__)
