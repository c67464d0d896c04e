"""What the terminal is told about the cells before they run, and where nothing ran."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

COUNTS = (
    "precision: 14 cells of 2 tests (coverage full); 4 not made: * bf16 has no quantized format"
)

NOTHING = "precision: --precision-matrix was given, but "


def test_counts(suite: pytest.Pytester, run: Run) -> None:
    """Cells and tests are counted, and the cells that make no sense by reason."""
    result = run()
    result.stdout.fnmatch_lines([COUNTS])
    assert result.stdout.str().count("precision: ") == 1


def test_counts_of_what_is_left(suite: pytest.Pytester) -> None:
    """The line says what was left out and how."""
    args = (
        "--precision-select=world_size=1",
        "--precision-coverage=smoke",
        "--precision-shard=1/1",
    )
    suite.runpytest_inprocess(*args).stdout.fnmatch_lines(
        ["precision: 2 cells of 2 tests (coverage smoke, select world_size=1); 4 not made: *"]
    )
    result = suite.runpytest_inprocess("-k", "w1 and glu_0 and mxfp8", "--precision-shard=1/2")
    result.stdout.re_match_lines([r"precision: \d cells? of \d tests?.*shard 1/2\); 4 not made: "])


def test_quiet(suite: pytest.Pytester, run_in_ci_once: Run) -> None:
    """With -q there is no line."""
    result = run_in_ci_once("-q")
    result.assert_outcomes(passed=1, skipped=14)
    assert "precision:" not in result.stdout.str()


def test_without_matrix_tests(pytester: pytest.Pytester) -> None:
    """Without matrix tests there is no line, but with the option: that nothing was collected."""
    pytester.makepyfile("def test_a(): pass")
    assert "precision:" not in pytester.runpytest_inprocess().stdout.str()
    result = pytester.runpytest_inprocess("--precision-matrix", "-q")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([NOTHING + "no test with @pytest.mark.precision_matrix was *"])


def test_nothing_left(suite: pytest.Pytester, run_in_ci_once: Run) -> None:
    """With the option and nothing left of the cells, the summary says so."""
    result = run_in_ci_once("--precision-matrix", "-k", "plain")
    result.stdout.fnmatch_lines([NOTHING + "none of the 14 cells that were collected was left *"])


def test_something_left(suite: pytest.Pytester) -> None:
    """Where cells ran, there is nothing to say."""
    result = suite.runpytest_inprocess("--precision-matrix")
    assert NOTHING not in result.stdout.str()


def test_worker_that_crashes(pytester: pytest.Pytester) -> None:
    """A worker that dies hands nothing over; its replacement does."""
    pytest.importorskip("xdist")
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.precision_matrix(world_size=[1, 2, 3])
        def test_a(cell):
            if cell.world_size == 2:
                os._exit(1)
        """
    )
    result = pytester.runpytest_subprocess("-n", "1", "--precision-matrix")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["precision: 3 cells of 1 test (coverage full)"])


@pytest.mark.parametrize(
    ("workers", "controller"),
    [("0", "getpid"), pytest.param("1", "getppid", marks=pytest.mark.nightly)],
)
def test_interrupted_before_it_is_known(
    pytester: pytest.Pytester, workers: str, controller: str
) -> None:
    """A session that was broken off while it collected does not say that there was nothing."""
    pytest.importorskip("xdist")
    pytester.makepyfile(
        f"""
        import os, signal, time

        os.kill(os.{controller}(), signal.SIGINT)
        time.sleep(1)
        """
    )
    result = pytester.runpytest_subprocess(f"-n{workers}", "--precision-matrix")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert NOTHING not in result.stdout.str()
