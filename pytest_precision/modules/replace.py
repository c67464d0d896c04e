"""Replace the linear layers of a model by quantized ones, and say which layers take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

from torch import nn

from pytest_precision.modules.layer import UNQUANTIZED
from pytest_precision.modules.linear import Linear
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.modules.slots import Quantizers

_PLAIN = ("fp32", "bf16", "fp16")


def quantize_linears(
    model: nn.Module,
    precision: str,
    *,
    primary_weight: str = "bf16",
    fuse_wgrad_accumulation: bool = False,
    backend: str = "emulated",
) -> nn.Module:
    """Replace, in place, the linear layers that take part by `modules.Linear`.

    As in Megatron's and Transformer Engine's models, those are the linear layers of transformer
    blocks: every `nn.Linear` (and no subclass, which computes something else) of `model.blocks`, or
    of the whole model where it has no `blocks`; but for those that share their weight with another
    module, as a tied output layer does, and those of a module whose attribute `high_precision` is
    true, as a router says of itself. Embeddings, norms and output layers stay as they are.

    Parameters remain the same objects under the same names, unless the primary weight is quantized.

    Args:
        model: on its device and in its dtype already.
        precision: of cells. A model in fp32, bf16 or fp16 is left alone, unless its accumulation
            is to be fused, which is known in bf16 only.
        primary_weight: "quantized" makes a `QuantizedParameter` of each weight that takes part.
        fuse_wgrad_accumulation: of the layers that are made; each weight then needs a `main_grad`.
        backend: of the layers that are made.

    Returns:
        The model; another one only if it is a linear layer itself.

    Raises:
        ValueError: no layer takes part, or the precision cannot do what is asked for.
    """
    if precision in _PLAIN and not fuse_wgrad_accumulation:
        return model
    if precision in _PLAIN and precision != UNQUANTIZED:
        raise ValueError(
            f"expected bf16 or a quantized precision but got precision={precision!r} (str); "
            "weight gradients of others are not accumulated by the GEMM"
        )
    taking_part = dict(_linears(model))
    if not taking_part:
        raise ValueError(
            f"expected an nn.Linear that takes part but got none ({type(model).__name__}); put the "
            "layers to be quantized into `blocks`, as modules of class nn.Linear itself"
        )
    for name, linear in taking_part.items():
        made = Linear.around(linear, precision, name, backend)
        made.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        if primary_weight == "quantized":
            quantizers = cast(Quantizers, made.quantizers[0])
            parameter = QuantizedParameter.of(linear.weight, quantizers.weight)
            made.weight = cast(nn.Parameter, parameter)
        if not name:
            return made
        model.set_submodule(name, made)
    return model


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    holders: Counter[int] = Counter()
    for module in model.modules():
        holders.update(id(p) for p in module.parameters(recurse=False))
    prefix = "blocks." if hasattr(model, "blocks") else ""
    high_precision = [
        name
        for name, module in model.named_modules()
        if getattr(module, "high_precision", False)
        or any(holders[id(p)] > 1 for p in module.parameters(recurse=False))
    ]
    for name, module in model.named_modules():
        stays = any(name == high or name.startswith(f"{high}.") for high in high_precision)
        if type(module) is nn.Linear and name.startswith(prefix) and not stays:
            yield name, module
