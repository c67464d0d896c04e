"""-p pytest_precision.te.plugin: tests that others wrote for a GPU, in pytest's own process."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout

import pytest
import te_wheel

from pytest_precision import layouts
from pytest_precision.matrix.declared import Declared
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks import ImportPath
from pytest_precision.ranks.needs import Needs
from pytest_precision.te import stand_in

SUITE = """
    import torch
    import transformer_engine.pytorch as te

    def test_a_linear_layer():
        x = torch.randn(32, 32, device="cuda", requires_grad=True)
        te.Linear(32, 32)(x).sum().backward()
        assert x.grad.is_cuda
"""

ON_THE_HOST = """
    import pytest
    import torch
    import transformer_engine.pytorch as te
    import transformer_engine_torch as tex

    HERE, THERE = torch.ones(4, device="cpu"), torch.ones(4, device="cuda")

    def test_what_is_computed_on_the_host_is_there():
        found = {
            "operators": 2 * HERE - 1,
            "cast": HERE.to(torch.bfloat16),
            "clone": HERE.clone(),
            "alike": torch.zeros_like(HERE),
            "new": HERE.new_zeros(2),
            "joined": torch.stack([HERE, 2 * HERE]),
        }
        assert {name: one.device.type for name, one in found.items() if one.is_cuda} == {}

    def test_what_is_computed_on_the_gpu_is_there():
        found = {
            "operators": 2 * THERE - 1,
            "cast": THERE.to(torch.bfloat16),
            "joined": torch.cat([THERE, THERE]),
            "moved": (2 * HERE).cuda(),
            "both": HERE.cuda() + THERE,
        }
        assert {name: one.device.type for name, one in found.items() if one.is_cpu} == {}

    def quantizers():
        yield te.Float8Quantizer(torch.ones(1), torch.zeros(1), tex.DType.kFloat8E4M3)
        yield te.MXFP8Quantizer(tex.DType.kFloat8E4M3)
        yield te.NVFP4Quantizer()

    @pytest.mark.parametrize("quantizer", quantizers(), ids=lambda one: type(one).__name__)
    def test_a_quantized_tensor_moves_with_all_that_it_consists_of(quantizer):
        tensor = quantizer(torch.ones(128, 128, dtype=torch.bfloat16, device="cuda"))
        copy = tensor.cpu()
        parts = [part for part in copy.get_metadata().values() if isinstance(part, torch.Tensor)]
        assert len(parts) >= 2
        assert {one.device.type for one in (copy, *parts, copy.dequantize())} == {"cpu"}
        back = copy.cuda()
        assert {one.device.type for one in (tensor, back, back.dequantize())} == {"cuda"}
"""


@layouts.fresh_ranks
@layouts.may_leave(*stand_in.CHANGES, "current directory", "entry of sys.path *")
def session(folder: str, *arguments: str) -> tuple[int, list[str]]:
    """Run pytest in this process; return its status and what it prints."""
    os.chdir(folder)
    said = io.StringIO()
    with redirect_stdout(said):
        status = pytest.main([*arguments, "-p", "no:cacheprovider"])
    return int(status), said.getvalue().splitlines()


@pytest.mark.slow
@te_wheel.NEEDED
def test_suites_that_import_transformer_engine_run(
    pytester: pytest.Pytester, resources: Resources
) -> None:
    """Their modules may import it at their top; without the plugin they cannot be collected.

    What such a suite computes on the CPU by name says so, as it compares it with what a GPU
    computed.
    """
    pytester.makepyfile(test_layer=SUITE, test_host=ON_THE_HOST)
    needs = Needs.of(ImportPath.of(session), Declared.of(session))
    # Each session has a process of its own, which has imported torch alone.
    run = resources.ranks(Settings(timeout=120, device="cpu")).run

    def told(*arguments: str) -> pytest.RunResult:
        ((status, lines),) = run(1, session, str(pytester.path), *arguments, needs=needs)
        return pytest.RunResult(status, lines, [], 0.0)

    without = told()
    assert without.ret == pytest.ExitCode.INTERRUPTED
    without.assert_outcomes(errors=2)
    result = told("-p", "pytest_precision.te.plugin")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["Transformer Engine: 2.20.* on the CPU, over a stand-in *"])
