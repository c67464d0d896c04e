"""--precision-backend: what the header, the report and a refusal say on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

CHECK = """
    import pytest
    from pytest_precision import layouts, workloads

    @pytest.mark.precision_matrix(precision=["{precision}"], sequence=["train1"]{options})
    def test_a(parity):
        parity.check(layouts.master_adamw, layouts.adamw, workload=workloads.mlp)
"""


def test_header_says_what_is_known(suite: pytest.Pytester, run: Run) -> None:
    """Where cells that quantize run; what may depend on the GPU is left to the ranks."""
    result = run("--precision-matrix", "--precision-device=cpu")
    result.stdout.fnmatch_lines(["precision: 14 cells *; number formats emulated: *on the CPU"])
    result = run("--precision-matrix", "--precision-select=precision=bf16")
    result.stdout.no_fnmatch_line("*number formats*")


def test_native_without_a_gpu_is_a_usage_error(pytester: pytest.Pytester, run: Run) -> None:
    """Before anything runs, whether the marker asks for it or the command line."""
    marker = CHECK.format(precision="mxfp8", options=', backend="native", device="cpu"')
    line = CHECK.format(precision="nvfp4", options="")
    args = ("--precision-matrix", "--precision-backend=native", "--precision-device=cpu")
    for text, own in ((marker, args[:1]), (line, args)):
        pytester.makepyfile(test_file=text)
        result = run(*own)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            ["ERROR: test_file.py::test_a: expected Transformer Engine * and a GPU * 10.0*"]
        )


def test_native_without_quantized_cells_is_let_be(pytester: pytest.Pytester) -> None:
    """A matrix without number formats has nothing to be native."""
    pytester.makepyfile(CHECK.format(precision="fp32", options=""))
    args = ("--precision-matrix", "--precision-backend=native", "--precision-device=cpu")
    assert pytester.runpytest_inprocess("--collect-only", *args).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("asked", ["auto", "emulated"])
def test_report_says_what_was_taken(pytester: pytest.Pytester, asked: str) -> None:
    """And why, beside the versions that the ranks ran with."""
    pytester.makepyfile(CHECK.format(precision="mxfp8", options=""))
    args = ("--precision-matrix", "--precision-device=cpu", "--precision-report=report")
    pytester.runpytest_subprocess(*args, f"--precision-backend={asked}")
    report = json.loads((pytester.path / "report" / "report.json").read_text())
    (ranks,) = report["environment"]["ranks"]
    why = "it was asked for" if asked == "emulated" else "native mxfp8 needs Transformer Engine "
    assert ranks["number_formats"].startswith(f"emulated: {why}")
