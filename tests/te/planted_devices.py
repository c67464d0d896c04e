"""What tensors, process groups and kernels say of the device, over the stand-in, on a rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_precision import layouts
from pytest_precision._torch import dispatch


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
