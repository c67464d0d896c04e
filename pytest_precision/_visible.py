"""Make foreign text, such as tensor names and the output of ranks, safe to print on a terminal.

Control characters can hide or rewrite the text around them, and so can characters that change the
direction of text; half of a surrogate pair cannot be written at all. In the log of a CI job, a line
that begins with two colons, and `##[` or `##vso[` anywhere, is a command to its runner.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the direction of text
    "\ud800-\udfff]"
)

_COMMAND = re.compile(r"^(\s*):(?=:)|(?<=#)()#(?=\[|vso\[)", re.MULTILINE)


def visible(text: str) -> str:
    """Return a text with control characters, and commands to a CI runner, written as escapes."""
    shown = _HIDDEN.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
    return _COMMAND.sub(lambda match: f"{match[1] or ''}\\x{ord(match[0][-1]):02x}", shown)
