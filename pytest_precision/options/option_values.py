"""Parse the text of options; each function returns the value or raises ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "false", "no", "off"), False
)


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def flag(text: str) -> bool:
    """Parse `true`, `yes`, `on`, `1` and their opposites into a bool."""
    _expect(text.lower() in _FLAGS, text)
    return _FLAGS[text.lower()]


def one_of(*choices: str) -> tuple[Callable[[str], str], str, str]:
    """Return the parse function, the expected values and the metavar of an option with choices."""

    def parse(text: str) -> str:
        _expect(text in choices, text)
        return text

    return parse, f"one of {', '.join(choices)}", "|".join(choices)


def selection(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse `AXIS=VALUE,VALUE` into the name of a matrix axis and the selected values."""
    axis, _, values = text.partition("=")
    _expect(bool(axis) and all(values.split(",")), text)
    return axis, tuple(values.split(","))


def shard_of(text: str) -> tuple[int, int]:
    """Parse `I/N` into a runner's number, from 1, and the number of runners."""
    index, count = map(int, text.split("/"))
    _expect(1 <= index <= count, text)
    return index, count


LONGEST_SECONDS = 1_000_000
"""About eleven days; `poll` counts milliseconds in an int, which holds about twice as many."""


def seconds(text: str) -> float:
    """Parse a number of seconds above 0 and up to `LONGEST_SECONDS`."""
    seconds = float(text)
    _expect(0 < seconds <= LONGEST_SECONDS, text)
    return seconds


def whole_count(text: str) -> int:
    """Parse an int that is at least 1."""
    count = int(text)
    _expect(count >= 1, text)
    return count


def module(text: str) -> str:
    """Return a text if it is the dotted name of a Python module; else raise ValueError."""
    _expect(all(part.isidentifier() for part in text.split(".")), text)
    return text


def revision(text: str) -> str:
    """Return a revision of git; raise ValueError if git would take the text for an option."""
    _expect(text != "" and not text.startswith("-"), text)
    return text


def program(text: str) -> Path:
    """Parse the path of a program into an absolute path, without resolving symbolic links."""
    return folder(text).absolute()


def pattern(text: str) -> str:
    """Return a pattern that is not empty; else raise ValueError."""
    _expect(text != "", text)
    return text


def leak_pattern(text: str) -> str:
    """Return an `fnmatch` pattern; raise ValueError if it is empty or has an unclosed bracket."""
    _expect(text != "" and not unclosed(text), text)
    return text


def unclosed(pattern: str) -> bool:
    """Return whether a pattern of `fnmatch` has a bracket that opens a set and does not close it.

    `fnmatch` takes such a bracket for a character, so that the pattern matches no name.
    """
    # Right after the bracket that opens, or after its `!`, one that closes is a member of the set.
    return "[" in re.sub(r"\[(?:!.|[^!])[^\]]*\]", "", pattern)


def folder(text: str) -> Path:
    """Parse the path of a folder; raise ValueError if it is empty."""
    return Path(pattern(text))
