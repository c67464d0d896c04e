"""A suite to collect, and the two ways of running it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

# 12 cells that make sense and 4 that do not, and 2 cells.
SUITE = """
    import pytest

    @pytest.mark.precision_matrix(
        precision=["bf16", "mxfp8"],
        primary_weight=["bf16", "quantized"],
        world_size=[1, 2],
        glu=[0, 32],
    )
    def test_grouped(cell):
        assert cell.world_size in (1, 2)
        assert cell.glu in (0, 32)

    @pytest.mark.precision_matrix(sequence=["train4", "train2-eval-train2"])
    def test_sequences(cell):
        assert cell.operations.count("train") == 4

    def test_plain():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with two matrix tests and a plain one."""
    pytester.makepyfile(test_suite=SUITE)
    return pytester


@pytest.fixture(params=["plain", "xdist"])
def run(request: pytest.FixtureRequest, pytester: pytest.Pytester) -> Run:
    """Run pytest in this process, or with two workers of xdist."""
    return runner(request.param, pytester)


@pytest.fixture(params=["plain", pytest.param("xdist", marks=pytest.mark.nightly)])
def run_in_ci_once(request: pytest.FixtureRequest, pytester: pytest.Pytester) -> Run:
    """Run pytest as `run` does, with workers every night: a test with `run` shows the same."""
    return runner(request.param, pytester)


def runner(how: str, pytester: pytest.Pytester) -> Run:
    """Return what runs pytest in this process, alone or with two workers of xdist."""
    if how == "plain":
        return pytester.runpytest_inprocess
    pytest.importorskip("xdist")
    return lambda *args: pytester.runpytest_inprocess("-n", "2", *args)


@pytest.fixture
def collect(pytester: pytest.Pytester) -> Callable[..., list[str]]:
    """Names of the tests that remain to run, in order."""

    def collect(*args: str) -> list[str]:
        recorder = pytester.inline_run("--collect-only", *args)
        assert recorder.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        (call,) = recorder.getcalls("pytest_collection_finish")
        return [item.name for item in call.session.items]

    return collect
