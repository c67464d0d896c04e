"""A failing rank under the options that users run pytest with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SUITE = """
    import pytest
    from around import fail, sum_of_ranks

    pytestmark = pytest.mark.world_size(2)

    def test_1(ranks):
        assert ranks.run(sum_of_ranks) == [3, 3]

    def test_2(ranks):
        ranks.run(fail)

    def test_3(ranks):
        assert ranks.run(sum_of_ranks) == [3, 3]

    def test_4(ranks):
        ranks.run(fail)
"""


@pytest.fixture
def outcomes(pytester, nothing_left):
    """What became of the tests of the suite, by name, in the order in which they ran."""

    def run(*options, suite=SUITE):
        pytester.makepyfile(test_session=suite)
        recorder = pytester.inline_run("--precision-device=cpu", *options)
        reports = recorder.getreports("pytest_runtest_logreport")
        return [
            (report.head_line, report.outcome)
            for report in reports
            if report.when == "call" or report.outcome != "passed"
        ]

    return run


def test_exitfirst(outcomes):
    """-x stops after the failure."""
    assert outcomes("-x") == [("test_1", "passed"), ("test_2", "failed")]


def test_maxfail(outcomes):
    """--maxfail counts failed tests, not ranks."""
    assert len(outcomes("--maxfail=2")) == 4
    assert outcomes("--maxfail=1")[-1] == ("test_2", "failed")


def test_last_failed_and_failed_first(outcomes):
    """--lf runs the two tests whose ranks failed; --ff runs them before the others, which pass."""
    outcomes()
    assert outcomes("--lf") == [("test_2", "failed"), ("test_4", "failed")]
    names = ["test_2", "test_4", "test_1", "test_3"]
    assert outcomes("--ff") == [*zip(names, ["failed"] * 2 + ["passed"] * 2, strict=True)]


def test_debugger(pytester, monkeypatch):
    """--pdb stops in the test, with the error at hand, and goes on with the next."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    pytester.makepyfile(test_session=SUITE)
    command = sys.executable, "-m", "pytest", "--pdb", "--precision-device=cpu"
    found = pytester.run(*command, stdin=b"p ranks.world_size + 40\nc\n" * 2)
    assert found.stdout.str().count("(Pdb) 42\n") == 2
    found.assert_outcomes(passed=2, failed=2)


def test_reruns(pytester, tmp_path):
    """--reruns of pytest-rerunfailures gives the test new ranks."""
    pytest.importorskip("pytest_rerunfailures")
    pytester.makepyfile(
        f"""
        import pytest
        from around import fail_once

        @pytest.mark.world_size(2)
        def test_flaky(ranks):
            ranks.run(fail_once, {str(tmp_path)!r})
        """
    )
    options = "-p", "rerunfailures", "--reruns=2", "--precision-device=cpu"
    recorder = pytester.inline_run(*options)
    reports = recorder.getreports("pytest_runtest_logreport")
    outcomes = [report.outcome for report in reports if report.when == "call"]
    assert outcomes == ["rerun", "passed"]


def test_timeout(outcomes):
    """The signal of pytest-timeout ends the ranks of its test, and no other."""
    suite = """
        import pytest
        from around import process, sum_of_ranks
        from time import sleep

        pytestmark = pytest.mark.world_size(2)

        @pytest.mark.timeout(1, method="signal")
        def test_slow(ranks):
            ranks.run(sleep, 600)

        def test_after(ranks):
            assert ranks.run(sum_of_ranks) == [3, 3]
    """
    assert outcomes(suite=suite) == [("test_slow", "failed"), ("test_after", "passed")]
