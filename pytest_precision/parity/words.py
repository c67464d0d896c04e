"""Words: how shares and factors are written, in a terminal and on a page."""

from __future__ import annotations

import math

PLAIN_EXPONENT = 10
"""Exponent below which a power of two is read as easily as a number."""


def percent(part: float, whole: float) -> str:
    """Format a share that is never rounded to 0 % or to 100 %."""
    share = 100 * part / whole
    if 0 < share < 1:
        return f"{share:.1g} %"
    return "over 99 %" if 99 < share < 100 else f"{share:.0f} %"


def power_of_two(value: float) -> str:
    """Format a very large or small power of two, such as 2^22; empty for other numbers."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and abs(exponent - 1) >= PLAIN_EXPONENT else ""
