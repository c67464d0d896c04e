"""A rank that writes more than anybody reads."""

from __future__ import annotations

import os

from slack import slack

MEGABYTES = 50


def flood():
    print("x" * 1_000_000 * MEGABYTES)
    os.write(2, b"below python\n")
    print("the end")
    raise KeyError("planted")


def test_the_end_of_the_output_is_shown(suffer, capfd):
    """However much there was; none of it reaches the terminal."""
    suffered = suffer(flood)
    assert (suffered.error.cause, suffered.error.exception) == ("raised", "builtins.KeyError")
    assert "xxx\nbelow python\nthe end\n" in suffered.text
    assert len(suffered.text) < 20_000
    assert len(capfd.readouterr().out) < 50_000
    assert suffered.seconds < slack()
