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


def test_one_comparison_in_time(pytester: pytest.Pytester) -> None:
    """A baseline and another commit at once would say of neither what has moved."""
    both = ("--precision-baseline=check", "--precision-against=HEAD")
    refused = pytester.runpytest_inprocess(*OPTIONS[:1], *both)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*but got both, with --precision-baseline=check; run pytest*"])
