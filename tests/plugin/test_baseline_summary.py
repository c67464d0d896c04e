"""A session says what became of baselines, and which no check asks for."""

from __future__ import annotations

import in_this_process  # noqa: F401
import pytest

SUITE = """
import pytest
from pytest_precision import layouts, workloads

@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"])
def test_{name}(parity):
    parity.check(layouts.adamw, "golden/{name}", workload=workloads.mlp)
"""

OPTIONS = ("--precision-matrix", "--precision-ranks=inline", "--precision-device=cpu")


def test_unused_baselines_are_listed(pytester: pytest.Pytester) -> None:
    """Those of tests that are gone, where all tests of the file have run; nothing is removed."""
    one = pytester.path / "test_one.py"
    one.write_text(SUITE.format(name="before"))
    made = pytester.runpytest_inprocess(*OPTIONS, "--precision-baseline=update")
    made.stdout.fnmatch_lines(["precision: baselines: 1 written"])
    one.write_text(SUITE.format(name="after"))
    made = pytester.runpytest_inprocess(*OPTIONS, "--precision-baseline=update")
    unused = "precision: 1 unused baseline, which no check asks for: *golden/before/fp32-train1.*"
    made.stdout.fnmatch_lines(["precision: baselines: 1 written", unused])
    some = pytester.runpytest_inprocess(*OPTIONS, "--precision-baseline=check", "-k", "after")
    some.stdout.fnmatch_lines(["precision: baselines: 1 as kept"])
    some.stdout.no_fnmatch_line("precision:*unused*")
    assert len([*(pytester.path / "precision_baselines").rglob("*.txt")]) == 2


TWO_WRITERS = (
    SUITE.format(name="one").replace("golden/one", "golden/shared")
    + SUITE.format(name="two").replace("golden/two", "golden/shared")
    + """
    parity.check(layouts.adamw, "golden/own", workload=workloads.mlp)
"""
)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.nightly)])
def test_a_baseline_is_written_by_one_check(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    """The second test with its name is refused, and names both; a session later it is not."""
    pytester.makepyfile(test_two=TWO_WRITERS)
    update = (*OPTIONS, "--precision-baseline=update", *workers)
    made = pytester.runpytest_inprocess(*update)
    made.assert_outcomes(passed=1, failed=1)
    both = "*error: expected one check to write *golden/shared* but got check 1 of *; give one*"
    made.stdout.fnmatch_lines([both])
    (file,) = (pytester.path / "precision_baselines").rglob("*.txt")
    renamed = TWO_WRITERS.replace("test_one", "test_renamed").replace("def test_two", "def no_test")
    pytester.makepyfile(test_two=renamed)
    pytester.runpytest_inprocess(*update).assert_outcomes(passed=1)
    assert "::test_renamed[" in file.read_text("utf-8")


def test_one_comparison_in_time(pytester: pytest.Pytester) -> None:
    """A baseline and another commit at once would say of neither what has moved."""
    both = ("--precision-baseline=check", "--precision-against=HEAD")
    refused = pytester.runpytest_inprocess(*OPTIONS[:1], *both)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*but got both, with --precision-baseline=check; run pytest*"])
