"""Text of others in front of a terminal."""

from __future__ import annotations

import pytest

from pytest_precision._visible import visible
from pytest_precision.ranks import RankError


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("10 %\r20 %", "10 %\\r20 %"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("name\udcff", "name\\udcff"),
        ("a\tb\nc é \N{GRINNING FACE}", "a\tb\nc é \N{GRINNING FACE}"),
    ],
)
def test_visible(text: str, seen: str) -> None:
    """What steers a terminal is shown as an escape sequence, and all other text is left alone."""
    assert visible(text) == seen


def test_what_a_rank_wrote() -> None:
    """Its output and its exception's text are the most foreign of all."""
    assert str(RankError("raised \x1b[31m", 0, "raised")) == "raised \\x1b[31m"
