"""Format percentages, lists, tables and powers of two for a terminal and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

PLAIN_EXPONENT = 10
"""Exponent below which a power of two is read as easily as a number."""


def percent(part: float, whole: float) -> str:
    """Format `part / whole` in percent, never rounded to 0 % or 100 %."""
    share = 100 * part / whole
    if 0 < share < 1:
        return f"{share:.1g} %"
    return "over 99 %" if 99 < share < 100 else f"{share:.0f} %"


def listed(names: Sequence[str], most: int) -> str:
    """Join the first `most` of some names with commas, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def power_of_two(value: float) -> str:
    """Format a very large or small power of two, such as 2^22; empty for other numbers."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and abs(exponent - 1) >= PLAIN_EXPONENT else ""
