"""Values: what the text of an option means; each function raises ValueError for other text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


def flag(text: str) -> bool:
    """Parse `true`, `yes`, `on`, `1` and their opposites into a bool."""
    if text.lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.lower()]


def one_of(*known: str) -> tuple[Callable[[str], str], str, str]:
    """Return parse function, expected values and metavar of an option with choices."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(text)
        return text

    return parse, f"one of {', '.join(known)}", "|".join(known)


def selection(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse `AXIS=VALUE,VALUE` into axis and values."""
    axis, _, values = text.partition("=")
    if not axis or not all(values.split(",")):
        raise ValueError(text)
    return axis, tuple(values.split(","))


def shard_of(text: str) -> tuple[int, int]:
    """Parse `I/N` into a runner's number, from 1, and the number of runners."""
    index, count = map(int, text.split("/"))
    if not 1 <= index <= count:
        raise ValueError(text)
    return index, count


LONGEST_SECONDS = 1_000_000
"""About eleven days; `poll` counts milliseconds in an int, which holds about twice as many."""


def seconds(text: str) -> float:
    """Parse a number of seconds above 0 and up to `LONGEST_SECONDS`."""
    seconds = float(text)
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(text)
    return seconds


def whole_count(text: str) -> int:
    """Parse an int that is at least 1."""
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def planted_share(text: str) -> float | None:
    """Parse the share of planted defects that a check must notice; None to plant none."""
    if text.lower() in _FLAGS and text != "1":
        return 0.0 if _FLAGS[text.lower()] else None
    return share(text)


def module(text: str) -> str:
    """Return a text if it is the dotted name of a Python module; else raise ValueError."""
    if not all(part.isidentifier() for part in text.split(".")):
        raise ValueError(text)
    return text


def revision(text: str) -> str:
    """Return a revision of git; raise ValueError if git would take the text for an option."""
    if not text or text.startswith("-"):
        raise ValueError(text)
    return text


def program(text: str) -> Path:
    """Parse the path of a program into an absolute path; links are kept."""
    if not text:
        raise ValueError(text)
    return Path(text).absolute()


def pattern(text: str) -> str:
    """Return a pattern that is not empty; else raise ValueError."""
    if not text:
        raise ValueError(text)
    return text


def leak_pattern(text: str) -> str:
    """Return an `fnmatch` pattern; raise ValueError if it is empty or has an unclosed bracket."""
    if not text or unclosed(text):
        raise ValueError(text)
    return text


def unclosed(pattern: str) -> bool:
    """Return whether a pattern of `fnmatch` has a bracket that opens a set and does not close it.

    `fnmatch` takes such a bracket for a character, so that the pattern matches no name.
    """
    # Right after the bracket that opens, or after its `!`, one that closes is a member of the set.
    return "[" in re.sub(r"\[(?:!.|[^!])[^\]]*\]", "", pattern)


def folder(text: str) -> Path:
    """Parse the path of a folder; raise ValueError if it is empty."""
    if not text:
        raise ValueError(text)
    return Path(text)
