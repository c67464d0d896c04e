"""Words: how shares are written, in a terminal and on a page."""

from __future__ import annotations


def percent(part: float, whole: float) -> str:
    """Format a share that is never rounded to 0 % or to 100 %."""
    share = 100 * part / whole
    if 0 < share < 1:
        return f"{share:.1g} %"
    return "over 99 %" if 99 < share < 100 else f"{share:.0f} %"
