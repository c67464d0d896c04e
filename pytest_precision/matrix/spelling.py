"""Spelling: whether a name is a misspelling of a known one."""

from __future__ import annotations

import re
from collections.abc import Iterable


def meant(name: str, known: Iterable[str], *, plurals: bool = True) -> str | None:
    """Return the first known name that `name` may be a misspelling of; None if there is none.

    Args:
        name: what somebody has written.
        known: names that mean something.
        plurals: whether the plural of a known name counts, too.
    """
    for one in known:
        if plurals and _folded(name) == _folded(one):
            return one
        if _slipped(name, one):
            return one
    return None


LEAST_LETTERS = 6
"""Letters of a name from which one slip is told from another word: `bank` and `rank` are words."""


def _slipped(name: str, known: str) -> bool:
    """Return whether two words differ by one letter, or by exchanged letters.

    More slips than one are the distance between words: `decision` has two letters other than
    `precision`. Who writes a known name whole, with something added, means that: `precision_b`.
    """
    if re.search(rf"(?<![a-z]){known}(?![a-z])", name):
        return False
    ours, theirs = _folded(name), _folded(known)
    if min(len(ours), len(theirs)) < LEAST_LETTERS or ours == theirs:
        return False
    if len(ours) == len(theirs):
        others = sum(a != b for a, b in zip(ours, theirs, strict=True))
        return others == 1 or sorted(ours) == sorted(theirs)
    longer, shorter = sorted((ours, theirs), key=len, reverse=True)
    return len(longer) == len(shorter) + 1 and any(
        longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer))
    )


def _folded(name: str) -> str:
    return name.replace("_", "").lower().rstrip("s")
