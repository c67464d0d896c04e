"""-p pytest_precision.te.plugin: tests that others wrote for a GPU, in pytest's own process."""

from __future__ import annotations

import pytest
import te_wheel

SUITE = """
    import torch
    import transformer_engine.pytorch as te

    def test_a_linear_layer():
        x = torch.randn(32, 32, device="cuda", requires_grad=True)
        te.Linear(32, 32)(x).sum().backward()
        assert x.grad.is_cuda
"""


@pytest.mark.slow
@te_wheel.NEEDED
def test_a_suite_that_imports_transformer_engine_runs(pytester: pytest.Pytester) -> None:
    """Its modules may import it at their top; without the plugin they cannot be collected."""
    pytester.makepyfile(SUITE)
    without = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert without.ret == pytest.ExitCode.INTERRUPTED
    result = pytester.runpytest_subprocess("-p", "pytest_precision.te.plugin")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Transformer Engine: 2.20.* on the CPU, over a stand-in *"])
