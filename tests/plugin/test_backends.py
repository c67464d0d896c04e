"""--precision-backend: what the header, the report and a refusal say on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import in_this_process  # noqa: F401
import pytest
from written import read_report

from pytest_precision.matrix.precisions import PRECISIONS, Precision, Recipe
from pytest_precision.plugin import cell_counts

Run = Callable[..., pytest.RunResult]

CHECK = """
    import pytest
    from pytest_precision import layouts, workloads

    @pytest.mark.precision_matrix(precision=["{precision}"], sequence=["train1"]{options})
    def test_a(parity):
        parity.check(layouts.master_adamw, layouts.adamw, workload=workloads.mlp)
"""


def test_header_says_what_is_known(suite: pytest.Pytester, run_in_ci_once: Run) -> None:
    """Where cells that quantize run; what may depend on the GPU is left to the ranks."""
    result = run_in_ci_once("--precision-matrix", "--precision-device=cpu")
    result.stdout.fnmatch_lines(["precision: 14 cells *; number formats emulated: *on the CPU"])
    result = suite.runpytest_inprocess("--precision-matrix", "--precision-select=precision=bf16")
    result.stdout.no_fnmatch_line("*number formats*")


def test_native_without_a_gpu_is_a_usage_error(
    pytester: pytest.Pytester, run_in_ci_once: Run
) -> None:
    """Before anything runs, whether the marker asks for it or the command line."""
    marker = CHECK.format(precision="mxfp8", options=', backend="native", device="cpu"')
    line = CHECK.format(precision="nvfp4", options="")
    args = ("--precision-matrix", "--precision-backend=native", "--precision-device=cpu")
    for text, own in ((marker, args[:1]), (line, args)):
        pytester.makepyfile(test_file=text)
        result = run_in_ci_once(*own)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            ["ERROR: test_file.py::test_a: expected Transformer Engine * and a GPU * 10.0*"]
        )


def test_native_without_quantized_cells_is_let_be(pytester: pytest.Pytester) -> None:
    """A matrix without number formats has nothing to be native."""
    pytester.makepyfile(CHECK.format(precision="fp32", options=""))
    args = ("--precision-matrix", "--precision-backend=native", "--precision-device=cpu")
    assert pytester.runpytest_inprocess("--collect-only", *args).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("asked", ["auto", pytest.param("emulated", marks=pytest.mark.nightly)])
def test_report_says_what_was_taken(pytester: pytest.Pytester, asked: str) -> None:
    """And why, beside the versions that the ranks ran with."""
    pytester.makepyfile(CHECK.format(precision="mxfp8", options=""))
    args = ("--precision-matrix", "--precision-device=cpu", "--precision-report=report")
    inline = "--precision-ranks=inline"
    pytester.runpytest_inprocess(*args, inline, f"--precision-backend={asked}")
    report = read_report(pytester.path / "report" / "report.json")
    (ranks,) = report["environment"]["ranks"]
    why = "it was requested" if asked == "emulated" else "native mxfp8 needs Transformer Engine "
    assert ranks["number_formats"].startswith(f"emulated: {why}")


@pytest.mark.parametrize(
    ("installed", "asked", "device", "text"),
    [
        (None, "auto", "auto", "emulated: no Transformer Engine"),
        (None, "auto", "cpu", "emulated: no Transformer Engine and ranks on the CPU"),
        ("2.19", "auto", "cpu", "emulated: ranks on the CPU"),
        ("2.12", "auto", "auto", "emulated: a Transformer Engine too old for mxfp8 (2.12)"),
        ("2.19", "auto", "auto", "native where the GPU has them: Transformer Engine 2.19"),
        ("2.19", "native", "cuda", "native: Transformer Engine 2.19"),
        ("2.19", "emulated", "cuda", "emulated"),
    ],
)
def test_announcements(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, asked: str, device: str, text: str
) -> None:
    """What is known before any rank has looked, once for all tests that ask alike."""
    monkeypatch.setattr(cell_counts, "installed_version", lambda: installed)
    asking = [cell_counts.Asked(test, "mxfp8", asked, device) for test in ("a", "b")]
    assert cell_counts.announcements(asking) == [f"number formats {text}"]


@pytest.mark.parametrize(
    ("installed", "asked", "device", "refused"),
    [
        (None, "native", "auto", "no Transformer Engine"),
        ("2.19", "native", "cpu", "ranks on the CPU"),
        ("2.12", "native", "auto", "a Transformer Engine too old for mxfp8 (2.12)"),
        ("2.19", "native", "auto", ""),
        (None, "auto", "cpu", ""),
        (None, "emulated", "cpu", ""),
    ],
)
def test_refused_before_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, asked: str, device: str, refused: str
) -> None:
    """Only `native`, and only for what no GPU could change; with the test that asks."""
    monkeypatch.setattr(cell_counts, "installed_version", lambda: installed)
    asking = cell_counts.Asked("test_a.py::test_b", "mxfp8", asked, device)
    messages = cell_counts.refusals([asking])
    assert len(messages) == bool(refused)
    for message in messages:
        assert message.startswith("test_a.py::test_b: expected Transformer Engine 2.13 or later ")
        assert f"for mxfp8 with --precision-backend=native but got {refused};" in message


def test_what_no_release_has_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed, and `native` is refused."""
    monkeypatch.setattr(cell_counts, "installed_version", lambda: "2.19")
    row = Precision("bf16", Recipe("mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3"))
    monkeypatch.setitem(PRECISIONS, "mine", row)
    text = "number formats emulated: no mine in Transformer Engine"
    assert cell_counts.announcements([cell_counts.Asked("a", "mine", "auto", "cuda")]) == [text]
    assert cell_counts.refusals([cell_counts.Asked("a", "mine", "native", "cuda")])
