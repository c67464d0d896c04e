"""A cell of two command lines has the verdict of `record` and `compare` on them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checked import ParityIn
from script_pairs import FOLDER, HELPERS, PAIRS, Pair

from pytest_precision import Cell, ParityError, Verdict, command
from pytest_precision.check.compare import compare_recordings
from pytest_precision.check.terms import Terms

Told = tuple[object, ...]

LEAST = 20
"""Fewer scripts or pairs than this are a folder that has been lost."""

IN_CI = ("rate_by_module:--fast",)
"""A pair that turns green where a module is imported before the script."""

LONG = pytest.mark.long(reason="Each side has an interpreter of its own, in a cell and recorded.")

IN_A_CELL = "place_read_at_import:2"
"""A pair of two ranks that does so."""


def pairs() -> Iterator[Any]:
    for pair in PAIRS:
        marks = LONG if pair.name in IN_CI else pytest.mark.nightly
        yield pytest.param(pair, id=pair.name, marks=marks)


def test_no_script_is_left_out() -> None:
    """Each script of the folder is in a pair, and the folder and the table have not shrunk.

    A sweep over files proves nothing once it finds none, so that it says how many it must find.
    What CI runs is in the table, too: a name that is none would leave CI without a pair.
    """
    scripts = {file.stem for file in FOLDER.glob("*.py")} - HELPERS
    used = {Path(shlex.split(words)[0]).stem for pair in PAIRS for words in pair[:2]}
    assert used == scripts
    assert len(scripts) >= 17
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= LEAST
    assert {pair.name for pair in PAIRS} >= {*IN_CI, IN_A_CELL}


@pytest.mark.parametrize("pair", [*pairs()])
def test_a_cell_says_what_record_and_compare_say(
    pair: Pair, parity_in: ParityIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same two command lines, in a cell and by two recordings, have one verdict.

    Both run a script file in a process of its own that has imported nothing before it. So they
    agree on whether the sides agree, and where they do not, on the first tensor that differs: its
    step, its phase, its kind and its name. A script that cannot be recorded is an error of both.
    What is right is in the table, so that two ways which fail in the same manner do not pass as
    equal.
    """
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cell = in_cell(pair, parity_in)
    assert cell == by_recordings(pair, tmp_path)
    assert pair.outcome == cell[0]


def test_a_cell_of_two_ranks_says_what_the_table_says(
    parity_in: ParityIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has imported nothing before the script, which reads its place while it is imported."""
    monkeypatch.chdir(FOLDER)
    (pair,) = (pair for pair in PAIRS if pair.name == IN_A_CELL)
    assert in_cell(pair, parity_in)[0] == pair.outcome == "fail"


def in_cell(pair: Pair, parity_in: ParityIn) -> Told:
    """Return what a check of the two commands says."""
    parity = parity_in(Cell(sequence=f"train{pair.steps}", world_size=pair.ranks))
    sides = (command(*shlex.split(words)) for words in pair[:2])
    try:
        return told(parity.check(*sides))
    except ParityError as failure:
        return told(failure.verdict)


def by_recordings(pair: Pair, folder: Path) -> Told:
    """Return what the command line says on two recordings of them."""
    start = [sys.executable, "-m"]
    if pair.ranks > 1:
        start += ["torch.distributed.run", f"--nproc-per-node={pair.ranks}", "-m"]
    for side, words in zip(("candidate", "reference"), pair[:2], strict=True):
        options = ["--out", str(folder / side), "--steps", str(pair.steps), "--"]
        done = subprocess.run(
            [*start, "pytest_precision", "record", *options, *shlex.split(words)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        if done.returncode:
            return ("error",)
    sides = folder / "candidate", folder / "reference"
    return told(compare_recordings(*sides, Terms.of(None), "recordings"))


def told(verdict: Verdict) -> Told:
    """Return what both ways must say alike: the outcome, and the first tensor that differs."""
    found = verdict.divergence
    first = (found.step, found.phase, found.kind, found.name) if found is not None else ()
    return verdict.outcome, *first
