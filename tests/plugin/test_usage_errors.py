"""Usage errors: exit status 4, every message, no traceback; with workers as without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest

Run = Callable[..., pytest.RunResult]


def refused(result: pytest.RunResult, *messages: str) -> None:
    """Assert that pytest ended with these usage errors, and with nothing worse."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for message in messages:
        result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "precision: --precision-matrix was given" not in result.stdout.str()


def test_option(suite: pytest.Pytester) -> None:
    """A bad value of an option ends the session before it collects."""
    result = suite.runpytest_inprocess("--precision-shard=5/4")
    refused(result, "command line: expected I/N * but got --precision-shard='5/4' (str); *")
    assert "collected" not in result.stdout.str()


def test_markers(pytester: pytest.Pytester, run: Run) -> None:
    """All bad markers are told at once, each with its test; no test runs, good ones neither."""
    pytester.makepyfile(
        """
        import pathlib
        import pytest

        def test_good(): pathlib.Path("ran").touch()

        @pytest.mark.precision_matrix(precision=["bf8"])
        def test_value(cell): pass

        @pytest.mark.precision_matrix(timeout="soon")
        def test_option(cell): pass

        @pytest.mark.precision_matrix(sequence=["train2-evil"])
        def test_sequence(cell): pass

        @pytest.mark.precision_matrix(sequence=["train999999999999"])
        def test_length(cell): pass

        @pytest.mark.precision_matrix(timeout=1e10)
        def test_timeout(cell): pass

        @pytest.mark.precision_matrix(world_size=[1], environment={"A=B": "1"})
        def test_variable(cell): pass
        """
    )
    refused(
        run("--precision-matrix"),
        "test_markers.py::test_value: expected precision to be one of fp32, *='bf8'*",
        "test_markers.py::test_option: expected a number of seconds * got timeout='soon'*",
        "test_markers.py::test_sequence: * position 7: 'evil' is no operation*",
        "test_markers.py::test_length: * longer than 100000 operations*",
        "test_markers.py::test_timeout: expected a number of seconds * got timeout=1*",
        "test_markers.py::test_variable: expected environment variables * got 'A=B'='1'*",
    )
    assert not (pytester.path / "ran").exists()


def test_selection(suite: pytest.Pytester, run_in_ci_once: Run) -> None:
    """An axis or a value that is in no cell is told with those that are."""
    refused(
        run_in_ci_once("--precision-select=colour=red", "--precision-select=precision=bf8"),
        "--precision-select: expected one of the axes precision, *, glu but got colour*",
        "--precision-select: expected precision to be one of bf16, mxfp8, fp32 but got*=bf8*",
    )


def test_a_module_to_preload_that_is_not_installed(
    suite: pytest.Pytester, run_in_ci_once: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named before any cell runs; a session without cells needs none."""
    monkeypatch.setitem(sys.modules, "no_spec", ModuleType("no_spec"))
    suite.makeini("[pytest]\nprecision_preload = no.such.module json no_spec.x")
    for module in ("no.such.module", "no_spec.x"):
        refused(
            run_in_ci_once("--precision-matrix"),
            f"expected installed modules in precision_preload but got '{module}'; install it, *",
        )
    for options in ((), ("--precision-matrix", "--precision-ranks=inline")):
        result = run_in_ci_once(*options)
        assert result.ret == pytest.ExitCode.OK
        result.stdout.no_fnmatch_line("*preloaded*")


def test_selection_that_leaves_nothing(suite: pytest.Pytester) -> None:
    """Known values that no cell has together are refused: nothing would run, and nothing fail."""
    args = "--precision-select=precision=bf16", "--precision-select=primary_weight=quantized"
    refused(
        suite.runpytest_inprocess(*args),
        "--precision-select: expected a cell with precision=bf16 and primary_weight=quantized *",
    )


def test_cell_of_a_bad_marker(pytester: pytest.Pytester, run_in_ci_once: Run) -> None:
    """Asking for one cell of a bad marker tells of the marker, not of a missing test."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.precision_matrix(precision="bf16")
        def test_a(cell): pass
        """
    )
    refused(
        run_in_ci_once("test_cell_of_a_bad_marker.py::test_a[bf16]"),
        "test_cell_of_a_bad_marker.py::test_a: expected a list of values *='bf16' (str)*",
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            """
            @matrix(world_size=[1])
            @matrix(precision=["bf16"])
            def test_a(cell): pass
            """,
            "*::test_a: expected one marker precision_matrix but got 2 in one place*",
        ),
        (
            """
            @matrix(world_size=[1])
            def test_a(): pass
            """,
            "*::test_a: expected an argument `cell` or `parity` but got none*",
        ),
        (
            """
            class TestA(unittest.TestCase):
                @matrix(world_size=[1])
                def test_a(self): pass
            """,
            "*::TestA::test_a: expected a function * method of unittest.TestCase*",
        ),
    ],
)
def test_marker_in_the_wrong_place(source: str, message: str, pytester: pytest.Pytester) -> None:
    """A marker that could have no effect, or a double one, is refused."""
    head = "import unittest, pytest\nmatrix = pytest.mark.precision_matrix\n"
    pytester.makepyfile(test_a=head + "\n".join(line[12:] for line in source.splitlines()))
    refused(pytester.runpytest_inprocess(), message)


def test_other_usage_errors(suite: pytest.Pytester) -> None:
    """Usage errors of pytest's own stay as they are."""
    result = suite.runpytest_inprocess("--precision-matrix", "test_suite.py::test_missing")
    refused(result, "not found: *test_missing*")
