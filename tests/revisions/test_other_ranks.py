"""The process that starts ranks of another interpreter does not come."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from slack import slack

from pytest_precision import RankError
from pytest_precision.ranks import RankPool
from pytest_precision.revisions.installation import Installation, link_package
from pytest_precision.revisions.other_ranks import OtherRanks


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("exec sleep 600", r"of that one does not answer: no word within 0.5 s\..*--precision-tim"),
        ("exit 3", "of that one does not answer: it has ended with status 3; read what it wrote"),
    ],
)
def test_a_host_that_does_not_come_is_not_waited_for(tmp_path: Path, does: str, words: str) -> None:
    """In the time that a start has, and never again; how it ended, and where to look."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o700)
    started = time.monotonic()
    other = OtherRanks(Installation("that one", python), link_package(tmp_path / "package"))
    ranks = RankPool(start=lambda member: other.start(replace(member, start_seconds=0.5)))
    for again in (words, "does not answer: it has ended with status"):
        with pytest.raises(RankError, match=again):
            ranks.run(1, os.getpid)
    other.close()
    assert time.monotonic() - started < slack()
