"""The statuses with which a test can end, such as `fail` and `xfail`, and their marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Status(NamedTuple):
    """How one status of a test, such as `fail`, is shown, and whether it fails the test.

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
    "drift": Status("D", "drifted", "red", failing=True),
    "vacuous": Status("V", "vacuous", "red", failing=True),
    "xpass": Status("X", "xpassed", "yellow", failing=False),
    "xfail": Status("x", "xfailed", "yellow", failing=False),
    "skip": Status("s", "skipped", "yellow", failing=False),
    "partial": Status("~", "passed in part", "green", failing=False),
    "pass": Status(".", "passed", "green", failing=False),
}
"""Worst first: the outcomes of a verdict; `xpass` and `xfail` for what pytest expected; and
`partial` for a pass under another criterion than bitwise, which may leave kinds out, for one of a
bare cell, and for a drift that is only reported."""

IN_PART = "passed, under a tolerance or without what was left out"
"""What `partial` means, in the words of a legend."""

PASSING = ("partial", "pass")

FAILING = tuple(name for name, status in STATUSES.items() if status.failing)

_RANK = {name: rank for rank, name in enumerate(STATUSES)}


def worst_status(statuses: Iterable[str]) -> str:
    """Return the worst of several test statuses, such as `error` before `fail`."""
    return min(statuses, key=_RANK.__getitem__)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 cell` or `6 cells`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def step_name(step: int) -> str:
    """Return a train step's number in words; 0 is `before the first step`."""
    return f"step {step}" if step else "before the first step"


def duration(seconds: float) -> str:
    """Return a duration in a readable unit: `0.4 s`, `12 s`, `4 min`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
