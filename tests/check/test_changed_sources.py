"""What a side reads may change in a session, in whichever way: the next check sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import file_sources
import other_sources
import pytest
import reading

from pytest_precision import Cell, Parity, ParityError, layouts, workloads
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources

pytestmark = pytest.mark.slow

TINY = partial(workloads.mlp, width=5, depth=1)

ROLES = ("reference", "candidate")

GUARD = {
    ("above a link", "reference"),
    ("module with the time of its bytecode", "reference"),
    ("module earlier on sys.path", "reference"),
    ("own cache", "candidate"),
    ("module that reads data", "candidate"),
}
"""What is tried in each run; ci/nightly tries all."""

CASES = [
    pytest.param(
        name, role, id=f"{name}-{role}", marks=() if (name, role) in GUARD else pytest.mark.nightly
    )
    for name in reading.SOURCES
    for role in ROLES
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Resources]:
    """Ranks and recordings that all checks of this file share, as those of a session do."""
    with closing(Resources()) as shared:
        yield shared


def outcome(shared: Resources, sides: list[Any]) -> str:
    """Check a candidate against a reference; return the outcome."""
    settings = Settings(device="cpu", timeout=120, lines="off")
    cell = Cell(sequence="train2")
    parity = Parity("test", cell, settings, shared.ranks(settings), shared.traces)
    with contextlib.suppress(ParityError):
        parity.check(*sides, workload=TINY)
    return str(parity.verdicts[-1].outcome)


@pytest.mark.parametrize(("name", "role"), CASES)
def test_a_change_is_seen(
    shared: Resources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    role: str,
) -> None:
    """One side reads 1, and agrees with one that knows it; then it reads 2, and must differ.

    Nothing of the first check may serve the second one: neither the recording of the reference,
    nor ranks that have imported or read something. No kind is known to the package: without a
    promise each check records both sides on new ranks.
    """
    monkeypatch.chdir(tmp_path)
    for variable in ("NUMBER_OF_A_TEST", "LC_ALL"):
        monkeypatch.setenv(variable, "1.0")
    reads = partial(reading.from_source, name=name, folder=str(tmp_path))
    sides: list[Any] = [layouts.adamw, reads] if role == "reference" else [reads, layouts.adamw]
    found = []
    for number in (1.0, 2.0):
        reading.SOURCES[name].write(tmp_path, number)
        found.append(outcome(shared, sides))
    assert found == ["pass", "fail"]


def test_there_are_many_kinds() -> None:
    """Each kind has a name of its own, and those that are always tried are among them."""
    of_files, of_others = file_sources.SOURCES, other_sources.SOURCES
    assert len(reading.SOURCES) == len(of_files) + len(of_others) >= 60
    assert {(name, role) for name in reading.SOURCES for role in ROLES} >= GUARD
