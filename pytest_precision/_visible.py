"""Visible: text of others, such as names of tensors and output of ranks, fit for a terminal.

Control characters can hide or rewrite what stands around them, and so can those that turn the
direction of text; half of a surrogate pair cannot be written at all.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tabulator and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # of the direction of text
    "\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return the text with escape sequences, as Python writes them, for what is not to be seen."""
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
