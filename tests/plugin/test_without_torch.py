"""Start-up and collection leave torch alone."""

from __future__ import annotations

import pytest

CONFTEST = """
    import sys

    def pytest_terminal_summary(terminalreporter):
        heavy = {"torch", "numpy", "hypothesis", "sympy", "xxhash"} & set(sys.modules)
        terminalreporter.write_line(f"imported: {sorted(heavy)}")
"""

SUITE = """
    import pytest
    from pytest_precision import layouts, workloads

    @pytest.mark.precision_matrix(precision=["bf16", "fp32"], world_size=[1, 2])
    def test_a(cell):
        layouts.adamw, layouts.fsdp2, workloads.mlp
        import pytest_precision.check.case
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A matrix test that uses torch when it runs, with no plugin loaded but this one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_precision.plugin.hooks")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=SUITE)
    return pytester


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--collect-only", "--precision-matrix"],
        ["--collect-only", "--precision-coverage=pairwise", "--precision-select=world_size=1"],
        ["--precision-matrix", "-k", "nothing"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(suite: pytest.Pytester, args: list[str]) -> None:
    """Neither skipped cells nor collected ones import torch or anything else that takes long."""
    result = suite.runpytest_subprocess(*args)
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    result.stdout.fnmatch_lines(["*imported: []"])


def test_a_cell_that_runs_imports_torch_alone(suite: pytest.Pytester) -> None:
    """To name layouts and to judge needs no DTensor, with which sympy comes; ranks import it."""
    result = suite.runpytest_subprocess("--precision-matrix", "-k", "w1")
    result.assert_outcomes(passed=2, deselected=2)
    assert "imported: ['numpy', 'torch', 'xxhash']" in result.outlines
