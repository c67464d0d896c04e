"""What tensors, process groups and kernels say of the device, over the stand-in, on a rank."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from pytest_precision import Cell, layouts, workloads
from pytest_precision._torch import dispatch
from pytest_precision.layouts.transformer_engine import kernels_there, layers
from pytest_precision.te import cuda


@layouts.uses_transformer_engine
def told_devices() -> dict[str, object]:
    """Say where tensors say that they are."""
    x = torch.ones(4, 4)
    copied = x.cpu()
    copied[0, 0] = 7.0
    return {
        "made": str(x.device),
        "asked for": str(torch.ones(2, device="cuda").device),
        "copied": str(copied.device),
        "view of the copy": str(copied.view(16)[3:].device),
        "back": str(copied.cuda().device),
        "the copy is one": float(x[0, 0]),
        "recorded without a copy": dispatch.memory_on_cpu(x).data_ptr() == x.data_ptr(),
        "gradient": str(_gradient().device),
        "module": str(next(torch.nn.Linear(2, 2).to("cuda").parameters()).device),
        "meta": str(torch.empty(2, device="meta").device),
        "instance": isinstance(x.device, torch.device),
    }


def _gradient() -> torch.Tensor:
    x = torch.ones(3, requires_grad=True)
    x.square().sum().backward()
    assert x.grad is not None
    return x.grad


@layouts.uses_transformer_engine
def told_types() -> list[str]:
    """Return the types of a quantized weight, of a tensor and of one on the CPU."""
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    with te.quantized_model_init(recipe=recipe.MXFP8BlockScaling()):
        weight = te.Linear(32, 32, bias=False, params_dtype=torch.bfloat16).weight
    return [str(one.type()) for one in (weight, torch.zeros(2), torch.zeros(2, device="cpu"))]


@layouts.uses_transformer_engine
def made_for_nccl() -> list[str]:
    """Make groups as a script for GPUs does, and return what they communicate by."""
    device = torch.device("cuda", 0)
    groups = [
        dist.new_group([0], backend="nccl", pg_options=object()),
        dist.new_group([0], backend="cpu:gloo,cuda:nccl", device_id=device),
    ]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    return [dist.get_backend(group) for group in groups]


@layouts.uses_transformer_engine
def exchanged_unevenly(sizes: list[int]) -> tuple[list[float], list[float]]:
    """Gather one part a rank, and return all of them; scatter as many, and return this one's."""
    rank = dist.get_rank()
    gathered = torch.zeros(sum(sizes))
    dist.all_gather([*gathered.split(sizes)], torch.full((sizes[rank],), rank + 1.0))
    parts = torch.arange(1.0 + rank, 1.0 + rank + sum(sizes))
    kept, own = parts.clone(), torch.zeros(sizes[rank])
    dist.reduce_scatter(own, [*parts.split(sizes)])
    assert torch.equal(parts, kept)
    return gathered.tolist(), own.tolist()


@layouts.uses_transformer_engine
def quantized_anew() -> list[float]:
    """Quantize a scalar, and quantize anew into a tensor of a derived class; return the values."""
    import transformer_engine.pytorch as te
    import transformer_engine_torch as tex

    delayed = te.Float8Quantizer(torch.ones(1), torch.zeros(1), tex.DType.kFloat8E4M3)
    scalar = delayed(torch.tensor(3.0)).dequantize()
    tensor = delayed(torch.ones(16, 16))
    tensor.__class__ = type("Derived", (type(tensor),), {})
    delayed.update_quantized(torch.full((16, 16), 2.0), tensor)
    return [float(scalar), float(tensor.dequantize().sum())]


@layouts.uses_transformer_engine
def compiled() -> tuple[float, str]:
    """Compile a function, which nothing compiles here, after torch has forgotten the others."""
    torch._dynamo.reset()
    made = torch.compile(torch.neg, fullgraph=True)(torch.ones(1, device="cuda"))
    return float(made), str(made.device)


@layouts.uses_transformer_engine
def added_blocks() -> dict[str, object]:
    """Multiply scaled blocks as compute capability 9.0 does, and add to a buffer in bf16."""
    import transformer_engine.pytorch as te
    import transformer_engine_torch as tex

    quantizer = te.Float8BlockQuantizer(
        tex.DType.kFloat8E4M3, rowwise=True, columnwise=True, block_scaling_dim=1
    )
    generator = torch.Generator().manual_seed(0)
    a, b = (quantizer(torch.randn(128, 128, generator=generator)) for _ in range(2))
    buffer = torch.randn(128, 128, generator=generator).bfloat16()

    def added(out: torch.Tensor | None, gelu: bool = False) -> torch.Tensor:
        bf16 = tex.DType.kBFloat16
        empty = torch.empty(0, dtype=torch.uint8)
        result: tuple[torch.Tensor, ...] = tex.generic_gemm(
            *(a, True, b, False, out, None, bf16, None, bf16, gelu, None, False),
            *(empty, 0, out is not None, True),
        )
        return result[0]

    cuda.enter((9, 0))
    try:
        twice = torch.equal(added(buffer.clone()), added(None) + buffer)
        try:
            refused = str(added(None, gelu=True))
        except RuntimeError as error:
            refused = str(error)
    finally:
        cuda.enter()
    once = torch.equal(added(buffer.clone()), added(None) + buffer)
    return {"rounded twice": twice, "refused": refused, "rounded twice on 10.0": once}


KINDS = ("FP8", "FP8_BLOCK_SCALING", "MXFP8", "NVFP4")
"""Kinds of support that Transformer Engine keeps its answers about."""

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "downstream" / "test_transformer_engine.py"


def why(function: Callable[..., object], *given: object, **options: object) -> str:
    """Call a function; return why it skips its test, or nothing."""
    try:
        function(*given, **options)
    except pytest.skip.Exception as skip:
        return str(skip)
    return ""


@contextmanager
def told_capability(capability: tuple[int, int]) -> Iterator[None]:
    """Have Transformer Engine be told another compute capability within the block."""
    _enter(capability)
    try:
        yield
    finally:
        _enter()


def _enter(*capability: tuple[int, int]) -> None:
    from transformer_engine.pytorch import quantization, utils

    cuda.enter(*capability)
    utils._get_device_compute_capability.cache_clear()
    for name in vars(quantization).keys() & {f"_{kind}_SUPPORT" for kind in KINDS}:
        setattr(quantization, name, None)  # answers are kept


@layouts.uses_transformer_engine
def skipped_on(capability: tuple[int, int], cublas: int) -> dict[str, str]:
    """Return why a cell of each precision, and one of a single weight, is skipped on a GPU."""
    import transformer_engine_torch as tex

    with told_capability(capability):
        found = {name: why(kernels_there.recipe_of, name) for name in kernels_there.RECIPES}
        model = workloads.moe(width=32, hidden=64).model(Cell("bf16", "bf16"))
        with patch.object(tex, "get_cublasLt_version", lambda: cublas):
            for name in ("bf16", *found):
                if not found.get(name):
                    skip = why(
                        layers.with_experts,
                        copy.deepcopy(model),
                        Cell(name, "bf16"),
                        single_grouped_weight=True,
                    )
                    found |= {f"single {name}": skip}
    return found


@layouts.uses_transformer_engine
def example_skipped_on(capability: tuple[int, int]) -> dict[str, str]:
    """Return why the example of a layout in a recipe of its own is skipped on a GPU, by recipe."""
    example = runpy.run_path(str(EXAMPLE))
    found = {}
    with told_capability(capability):
        for recipe in ("none", "current", "mxfp8"):
            cell = Cell("bf16", extra=(("recipe", recipe),))
            found[recipe] = why(example["separate"], example["Regression"](), cell)
    return found
