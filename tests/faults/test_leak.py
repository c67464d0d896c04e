"""A rank that does not put back what the next job computes with."""

from __future__ import annotations

import pytest

SUITE = """
    import pytest
    from around import sum_of_ranks
    from test_leak import default_dtype, leak

    pytestmark = pytest.mark.world_size(2)

    def test_leak(ranks):
        ranks.run(leak)

    def test_after(ranks):
        assert ranks.run(default_dtype) == ["torch.float32"] * 2
        assert ranks.run(sum_of_ranks) == [3, 3]
"""


def leak():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        torch.set_default_dtype(torch.float64)


def default_dtype():
    import torch

    return str(torch.get_default_dtype())


@pytest.mark.parametrize(("strict", "outcome"), [("true", "failed"), ("false", "passed")])
def test_a_leak_is_named(pytester, nothing_left, strict, outcome):
    """In a warning, which fails the test where the ini says so; the next one has new ranks."""
    pytester.makepyfile(test_session=SUITE)
    options = f"--override-ini=precision_strict_isolation={strict}", "--precision-device=cpu"
    found = pytester.runpytest_inprocess(*options, "-v")
    found.stdout.fnmatch_lines(
        [f"*::test_leak {outcome.upper()}*", "*::test_after PASSED*", "*rank 1: default dtype*"]
    )
    found.stdout.fnmatch_lines(["*was torch.float32, is torch.float64*"])


def test_what_the_ini_file_allows_is_no_leak(pytester, nothing_left):
    """A pattern a line; a strict session passes."""
    pytester.makepyfile(test_session=SUITE)
    pytester.makeini(
        """
        [pytest]
        precision_strict_isolation = true
        precision_may_leave =
            umask
            default [dt]*
        """
    )
    found = pytester.runpytest_inprocess("--precision-device=cpu")
    found.assert_outcomes(passed=2)
    found.stdout.no_fnmatch_line("*PrecisionLeakWarning*")
