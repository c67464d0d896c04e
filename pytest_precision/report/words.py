"""Words: how counts and times are written in the terminal."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 cell` or `6 cells`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


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
