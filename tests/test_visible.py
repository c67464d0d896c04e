"""Text of others in front of a terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_precision import PrecisionLeakWarning, RankError, Verdict
from pytest_precision._visible import visible
from pytest_precision.errors import RanksSkipped
from pytest_precision.parity.verdict import Ruling
from pytest_precision.ranks.state.leaks import Leak, warn


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("10 %\r20 %", "10 %\\r20 %"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("name\udcff", "name\\udcff"),
        ("::error::x\n \t::set-output name=a::b", "\\x3a:error::x\n \t\\x3a:set-output name=a::b"),
        ("a ##[error]b\n##vso[x]", "a #\\x23[error]b\n#\\x23vso[x]"),
        ("test.py::test # ## [x]", "test.py::test # ## [x]"),
        ("a\tb\nc é \N{GRINNING FACE}", "a\tb\nc é \N{GRINNING FACE}"),
    ],
)
def test_visible(text: str, seen: str) -> None:
    """What steers a terminal or a CI runner is shown as an escape sequence, and no other text."""
    assert visible(text) == seen


@pytest.mark.parametrize(
    "shown",
    [
        lambda text: str(RankError(text, 0, "raised")),
        lambda text: str(RanksSkipped(text)),
        lambda text: failed(text).reason,
        lambda text: failed(text).details[-2],
        lambda text: warning_of(Leak(text, "was absent")),
    ],
)
def test_what_ranks_have_said(shown: Callable[[str], str]) -> None:
    """Output, reasons to skip, names of tensors and variables are the most foreign of all."""
    text = shown("red \x1b[31m")
    assert "red \\x1b[31m" in text
    assert "\x1b" not in text


def failed(text: str) -> Verdict:
    return Verdict(
        nodeid="test",
        axes={},
        candidate="ours",
        reference="theirs",
        workload="data",
        criterion="bitwise",
        ruling=Ruling(outcome="fail", reason=text, details=(text,)),
    )


def warning_of(leak: Leak) -> str:
    with pytest.warns(PrecisionLeakWarning) as caught:
        warn("a job", [[leak]])
    return str(caught[0].message)
