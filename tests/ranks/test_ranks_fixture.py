"""The fixtures of whole sessions: what a test's ranks are given, and what becomes of the test."""

from __future__ import annotations

import os

import pytest
from written import read_report

from pytest_precision import Ranks, layouts

JOBS = """
    import os
    from functools import partial

    import pytest
    from pytest_precision import layouts

    def skip():
        pytest.skip("not on this machine")

    def leak():
        os.environ["PLANTED"] = "yes"

    def planted():
        return os.environ.get("PLANTED")

    def touch(folder, word="file"):
        (folder / f"{word}{os.environ['RANK']}").touch()

    def echo(timeout, environment, function):
        return timeout, environment, function

    @layouts.with_environment(PLANTED="declared")
    def variable(name):
        return os.environ.get(name)

    def skipping(workload, cell):
        pytest.skip("no such kernel")

    def leaking(workload, cell):
        leak()
        return layouts.adamw(workload, cell)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Jobs for the ranks of a session in this process."""
    import in_this_process  # noqa: F401, which ranks that import this module do without

    pytester.makepyfile(jobs=JOBS)
    return pytester


@pytest.mark.world_size(1)
def test_its_type_is_public(ranks):
    """A test that annotates its arguments needs no private module."""
    assert type(ranks) is Ranks


@layouts.fresh_ranks
def process():
    return os.getpid()


@layouts.may_leave("environment variable PLANTED")
def leave_variable():
    os.environ["PLANTED"] = "yes"


@pytest.mark.world_size(1)
def test_a_function_may_ask_for_ranks_of_its_own(ranks):
    """Each call has new ones."""
    assert ranks.run(process) != ranks.run(process)


@pytest.mark.world_size(1)
@pytest.mark.filterwarnings("error")
def test_a_function_says_what_it_may_leave(ranks):
    """That is no leak."""
    assert ranks.run(leave_variable) == [None]


def test_ranks_that_skip_skip_the_test(suite):
    """With their reason."""
    suite.makepyfile(
        """
        import jobs, pytest

        @pytest.mark.world_size(2)
        def test_it(ranks):
            ranks.run(jobs.skip)
        """
    )
    result = suite.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*not on this machine"])


def test_a_leak_is_a_warning_and_in_strict_sessions_a_failure(suite):
    """The summary has the test's name; the option comes from any of its sources."""
    suite.makepyfile(
        test_leak="""
        import jobs, pytest

        @pytest.mark.world_size(2)
        def test_it(ranks):
            ranks.run(jobs.leak)

        @pytest.mark.world_size(2)
        def test_next(ranks):
            assert ranks.run(jobs.planted) == [None, None]
        """,
    )
    result = suite.runpytest_inprocess()
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["test_leak.py::test_it", "*PrecisionLeakWarning: jobs:leak left*"])
    suite.makeini("[pytest]\nprecision_strict_isolation = true\n")
    result = suite.runpytest_inprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*rank 0, 1: environment variable PLANTED was absent, is yes"])


def test_strict_isolation_needs_the_warnings_plugin(suite):
    """Without it nothing would turn a leak into a failure, so the session is refused."""
    result = suite.runpytest_inprocess("-o", "precision_strict_isolation=true", "-p", "no:warnings")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*expected pytest's warnings plugin*drop one of them*"])


def test_the_shared_path_is_the_tests_own(suite):
    """All ranks see it; it is made when it is first asked for, in the test's `tmp_path`."""
    suite.makepyfile(
        """
        import jobs, pytest

        @pytest.mark.world_size(2)
        def test_it(ranks, tmp_path):
            assert not list(tmp_path.iterdir())
            ranks.run(jobs.touch, ranks.shared_path, word="mine")
            assert ranks.shared_path.parent == tmp_path
            found = sorted(path.name for path in ranks.shared_path.iterdir())
            assert found == ["mine0", "mine1"]

        @pytest.mark.world_size(1)
        def test_another(ranks):
            assert not list(ranks.shared_path.iterdir())
        """
    )
    suite.runpytest_inprocess().assert_outcomes(passed=2)


def test_keywords_are_the_functions(suite):
    """Whatever keywords mean elsewhere; what cannot travel is named."""
    suite.makepyfile(
        """
        import jobs, pytest

        @pytest.mark.world_size(1)
        def test_it(ranks):
            given = dict(timeout=1, environment=2, function=3)
            assert ranks.run(jobs.echo, **given) == [(1, 2, 3)]

        @pytest.mark.world_size(1)
        @pytest.mark.parametrize("args, word", [((open("jobs.py"),), "argument 0"), ((), "name")])
        def test_what_cannot_travel(ranks, args, word):
            with pytest.raises(TypeError, match=f"but got {word}=<_io.TextIO"):
                ranks.run(jobs.touch, *args, **({} if args else {"name": open("jobs.py")}))
        """
    )
    suite.runpytest_inprocess().assert_outcomes(passed=3)


# By day, those that a layout declares reach its ranks in the session below.
@pytest.mark.nightly
def test_variables_are_the_functions(suite):
    """Declared ones reach the ranks of that function."""
    suite.makepyfile(
        """
        import jobs, pytest

        @pytest.mark.world_size(1)
        def test_it(ranks):
            assert ranks.run(jobs.variable, "PLANTED") == ["declared"]
        """
    )
    suite.runpytest_inprocess().assert_outcomes(passed=1)


def test_cells_have_their_environment_and_their_outcomes(suite):
    """Of the marker and of each side's layout; pins and variables are in report.json, once."""
    suite.makepyfile(
        """
        import jobs, pytest
        from functools import partial
        from pytest_precision import layouts, workloads

        mlp = partial(workloads.mlp)
        CELLS = pytest.mark.precision_matrix(
            sequence=["train2"], environment={"NVTE_PLANTED": "cell", "ATEN_PLANTED": "cell"}
        )
        PLAIN = pytest.mark.precision_matrix(sequence=["train2"])
        other = layouts.with_environment(NVTE_PLANTED="layout")(partial(layouts.ddp))

        @CELLS
        def test_passes(parity):
            assert dict(parity.cell.environment)["NVTE_PLANTED"] == "cell"
            found = parity.check(other, layouts.adamw, workload=mlp).environment
            assert found["candidate"]["NVTE_PLANTED"] == "layout"
            assert found["reference"]["NVTE_PLANTED"] == "cell"
            assert found["candidate"]["ATEN_PLANTED"] == "cell"

        @PLAIN
        def test_skips(parity):
            parity.check(jobs.skipping, layouts.adamw, workload=mlp)

        @PLAIN
        def test_leaks(parity):
            parity.check(jobs.leaking, layouts.adamw, workload=mlp)
        """
    )
    strict = ["-o", "precision_strict_isolation=true", "--precision-report=out"]
    result = suite.runpytest_inprocess("--precision-matrix", *strict)
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*error: the candidate failed: jobs:leaking le*"])
    report = read_report(suite.path / "out" / "report.json")
    ranks = report["environment"]["ranks"]
    assert sorted(found["NVTE_PLANTED"] for found in ranks) == ["cell", "layout"]
    assert ranks[0]["uninitialized_memory"] == "NaN"
    [unlike] = [cell["environment"] for cell in report["cells"] if "environment" in cell]
    assert {side: [*own] for side, own in unlike.items()} == {
        "candidate": ["NVTE_PLANTED"],
        "reference": ["NVTE_PLANTED"],
    }
