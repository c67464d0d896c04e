"""Tests that share servers run on one worker, and all others file by file."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_worker import UNITS, unit_of

ROOT = Path(__file__).parents[1]


def test_files_that_share_servers_go_to_one_worker() -> None:
    """Each is named as it is; any other file is a unit of its own."""
    for unit, names in UNITS.items():
        files = [str(path.relative_to(ROOT)) for name in names for path in ROOT.glob(f"{name}*")]
        assert len(files) >= len(names)
        assert {unit_of(file) for file in files} == {unit}
    assert unit_of("tests/commands/test_record.py") == "tests/commands/test_record.py"


def test_workers_are_given_units(pytester: pytest.Pytester) -> None:
    """Two files of a unit have the same worker, where each file alone would have its own."""
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    pytester.makeini(f"[pytest]\npythonpath = {ROOT / 'tests'}")
    folder = pytester.mkpydir("tests") / "te"
    folder.mkdir()
    for number in range(4):
        (folder / f"test_{number}.py").write_text("def test_it(worker_id): print(worker_id)")
    found = pytester.runpytest_inprocess("-n", "2", "--dist", "loadfile", "-rP")
    found.assert_outcomes(passed=4)
    assert len({line for line in found.outlines if line in ("gw0", "gw1")}) == 1
