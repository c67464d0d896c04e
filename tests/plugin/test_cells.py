"""Cells as pytest sees them: collected, skipped or run, from markers in every place."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pytest_precision.options import OPTIONS

CELLS = 14
"""Number of cells of the suite."""

Run = Callable[..., pytest.RunResult]
Collect = Callable[..., list[str]]


def test_skipped_without_the_option(suite: pytest.Pytester) -> None:
    """Without the option cells are collected and skipped, with a reason that names it."""
    result = suite.runpytest_inprocess("-rs")
    result.assert_outcomes(passed=1, skipped=CELLS)
    result.stdout.fnmatch_lines(["SKIPPED*: cells run with --precision-matrix only"])


def test_run_with_the_option(suite: pytest.Pytester, run_in_ci_once: Run) -> None:
    """With the option every cell is a test of its own."""
    run_in_ci_once("--precision-matrix").assert_outcomes(passed=CELLS + 1)


def test_ids(suite: pytest.Pytester, collect: Collect) -> None:
    """Node ids name the values of the marker's axes."""
    names = collect()
    assert names[0] == "test_grouped[bf16-bf16-w1-glu_0]"
    assert "test_grouped[mxfp8-quantized-w2-glu_32]" in names
    assert names[-3:] == [
        "test_sequences[train4]",
        "test_sequences[train2-eval-train2]",
        "test_plain",
    ]


def test_ids_in_every_process(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, collect: Collect
) -> None:
    """Ids, their order and the choice of coverage and shard depend on no hash seed."""
    args = "--precision-coverage=pairwise", "--precision-shard=1/2"
    here = collect(*args)
    another = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    monkeypatch.setenv("PYTHONHASHSEED", another)
    output = suite.runpytest_subprocess("--collect-only", "-q", *args).outlines
    assert [line.partition("::")[2] for line in output if "::" in line] == here
    assert 2 < len(here) < CELLS


def test_one_cell_by_id(suite: pytest.Pytester) -> None:
    """A cell runs by its id, whatever the coverage."""
    cell = "test_suite.py::test_grouped[mxfp8-quantized-w2-glu_32]"
    for coverage in ("full", "pairwise", "smoke"):
        args = "--precision-matrix", f"--precision-coverage={coverage}", cell
        suite.runpytest_inprocess(*args).assert_outcomes(passed=1)


def test_marker_of_a_class(pytester: pytest.Pytester, collect: Collect) -> None:
    """A class's marker is for its methods that take a cell and have no marker of their own."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.precision_matrix(world_size=[1, 2])
        class TestAll:
            def test_inherited(self, cell): pass

            @pytest.mark.precision_matrix(world_size=[3])
            def test_own(self, cell): pass

            def test_without(self): pass
        """
    )
    expected = ["test_inherited[w1]", "test_inherited[w2]", "test_own[w3]", "test_without"]
    assert collect() == expected


def test_marker_of_a_module(pytester: pytest.Pytester, collect: Collect) -> None:
    """A module's marker is for what has none in between; every test is one matrix of its own."""
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.precision_matrix(world_size=[1, 2], coverage="smoke")

        def test_a(cell): pass

        def test_b(cell): pass
        """
    )
    assert collect() == ["test_a[w1]", "test_b[w1]"]


def test_cell_through_another_fixture(pytester: pytest.Pytester) -> None:
    """A test takes its cell also through a fixture that asks for it."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def ranks_needed(cell):
            return cell.world_size

        @pytest.mark.precision_matrix(world_size=[1, 2])
        def test_a(ranks_needed):
            assert ranks_needed in (1, 2)
        """
    )
    pytester.runpytest_inprocess("--precision-matrix").assert_outcomes(passed=2)


def test_further_parameters(pytester: pytest.Pytester, collect: Collect) -> None:
    """Ordinary parameters multiply the cells; a coverage keeps all of them with a chosen cell."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("seed", [1, 2])
        @pytest.mark.precision_matrix(world_size=[1, 2])
        def test_a(cell, seed): pass
        """
    )
    assert len(collect()) == 4
    assert {name.count("w1") for name in collect("--precision-coverage=smoke")} == {1}
    assert len(collect("--precision-coverage=smoke")) == 2


def test_marks_on_a_matrix_test(pytester: pytest.Pytester) -> None:
    """Skip, xfail and -m work on cells as on any test."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.xfail(reason="known", strict=True)
        @pytest.mark.precision_matrix(world_size=[1, 2])
        def test_a(cell):
            assert cell.world_size == 0

        def test_plain(): pass
        """
    )
    result = pytester.runpytest_inprocess("--precision-matrix", "-m", "precision_matrix")
    result.assert_outcomes(xfailed=2, deselected=1)


def test_cell_outside_a_matrix(pytester: pytest.Pytester) -> None:
    """A test that asks for a cell and has no matrix is told of the marker."""
    pytester.makepyfile("def test_a(cell): pass")
    result = pytester.runpytest_inprocess("--precision-matrix")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["expected a test with cells but got *::test_a*@pytest.mark.precision_matrix(*"]
    )


def test_markers_are_registered(pytester: pytest.Pytester) -> None:
    """The plugin's markers pass --strict-markers and are documented, with the options they take."""
    lines = pytester.runpytest_inprocess("--markers").stdout
    options = ", ".join(option.name for option in OPTIONS if option.of_marker)
    assert "jitter" in options
    lines.fnmatch_lines(
        [
            f"@pytest.mark.precision_matrix(axis=*, environment, {options}): *",
            "@pytest.mark.world_size(n): *",
            "@pytest.mark.precision_regression(*",
        ]
    )


def test_fixtures_of_the_project(pytester: pytest.Pytester) -> None:
    """Fixtures `cell` and `ranks` of a project's own stay theirs; `precision_cell` is the cell."""
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def ranks(): return [0, 1]

        @pytest.fixture
        def cell(): return {"A1": 3}
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.precision_matrix(sequence=["train2"], world_size=[2])
        def test_both(parity, cell, ranks, precision_cell):
            assert cell == {"A1": 3} and ranks == [0, 1]
            assert parity.cell is precision_cell and precision_cell.world_size == 2
            pytest.skip("seen")
        """
    )
    pytester.runpytest_inprocess("--precision-matrix").assert_outcomes(skipped=1)
    pytester.makepyfile(
        test_neither="""
        import pytest

        @pytest.mark.precision_matrix(sequence=["train2"])
        def test_neither(cell): pass
        """
    )
    result = pytester.runpytest_inprocess("--precision-matrix")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*::test_neither: *add one (`precision_cell`, if `cell` is a*"])
