"""Turn values into plain data: what JSON has, and what xdist can send from a worker.

Whatever a verdict holds leaves through `as_plain`, so that no value of torch, numpy or a test
reaches report.json, JUnit files or the processes of xdist.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

PlainElement = float | str | bool | None
"""An element of a tensor: its number, or its text where JSON has no number for it."""

LARGEST_NUMBER = sys.float_info.max
"""JSON has larger whole numbers, which no float holds; and Python reads NaN and Infinity in it."""


def as_plain(value: Any) -> Any:
    """Return a value as dicts with text keys, lists, and elements that JSON has.

    NaN and infinities become text. So does what is no container and has no number, such as a dtype.
    """
    if isinstance(value, Mapping):
        return {plain_text(name): as_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(inner) for inner in value]
    element = plain_element(value)
    if isinstance(element, float) and not math.isfinite(element):
        return str(element)
    return element


def plain_element(value: Any) -> PlainElement:
    """Return an element of a tensor as a builtin number, or as text: `(3+1j)`, `torch.float32`.

    NaN and infinities stay floats.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -LARGEST_NUMBER <= value <= LARGEST_NUMBER else hex(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str | complex):
        return plain_text(value)
    # A scalar of numpy or torch, neither of which is imported for this.
    if getattr(value, "shape", None) == ():
        with suppress(Exception):  # torch has no number for an element of a packed dtype
            builtin = value.item()
            if type(builtin) is not type(value):
                return plain_element(builtin)
    return plain_text(value)


def plain_text(value: object) -> str:
    """Return the text of a value; half of a surrogate pair becomes the text of its escape."""
    try:
        text = str(value)
    except Exception:  # of the user's class, or of a dtype that torch cannot print
        text = object.__repr__(value)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
