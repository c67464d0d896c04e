"""Values: what the text of an option means; each function raises ValueError for other text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


def flag(text: str) -> bool:
    """Return what a word for yes or no means."""
    if text.lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.lower()]


def one_of(*known: str) -> tuple[Callable[[str], str], str, str]:
    """Return the parse function, the expected values and the metavar of a choice."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(text)
        return text

    return parse, f"one of {', '.join(known)}", "|".join(known)


def selection(text: str) -> tuple[str, tuple[str, ...]]:
    """Return an axis and the values that are selected on it."""
    axis, _, values = text.partition("=")
    if not axis or not all(values.split(",")):
        raise ValueError(text)
    return axis, tuple(values.split(","))


def shard_of(text: str) -> tuple[int, int]:
    """Return the index of a runner, from 1, and how many there are."""
    index, count = map(int, text.split("/"))
    if not 1 <= index <= count:
        raise ValueError(text)
    return index, count


LONGEST_SECONDS = 1_000_000
"""About eleven days; `poll` counts milliseconds in an int, which holds about twice as many."""


def seconds(text: str) -> float:
    """Return a duration that a deadline can have."""
    seconds = float(text)
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(text)
    return seconds


def whole_count(text: str) -> int:
    """Return an int from 1."""
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def share(text: str) -> float:
    """Return a number from 0 to 1."""
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def planted_share(text: str) -> float | None:
    """Return the share of planted defects that must be noticed; None if none are to be planted."""
    if text.lower() in _FLAGS and text != "1":
        return 0.0 if _FLAGS[text.lower()] else None
    return share(text)


def module(text: str) -> str:
    """Return the name of a module."""
    if not all(part.isidentifier() for part in text.split(".")):
        raise ValueError(text)
    return text


def revision(text: str) -> str:
    """Return git's name of a commit, which is no option of git."""
    if not text or text.startswith("-"):
        raise ValueError(text)
    return text


def program(text: str) -> Path:
    """Return the absolute path of a program; a link stays one, since environments have such."""
    if not text:
        raise ValueError(text)
    return Path(text).absolute()


def pattern(text: str) -> str:
    """Return a pattern, which is not empty."""
    if not text:
        raise ValueError(text)
    return text


def folder(text: str) -> Path:
    """Return a path."""
    if not text:
        raise ValueError(text)
    return Path(text)
