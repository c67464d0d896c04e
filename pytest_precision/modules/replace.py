"""Make the linear layers of a model quantized ones, and say which layers take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

from torch import nn

from pytest_precision.errors import expected_but_got, named
from pytest_precision.matrix.precisions import PRECISIONS
from pytest_precision.modules.layer import UNQUANTIZED
from pytest_precision.modules.linear import Linear
from pytest_precision.modules.parameter import QuantizedParameter
from pytest_precision.modules.slots import Quantizers


def quantize_linears(
    model: nn.Module,
    precision: str,
    *,
    primary_weight: str = "bf16",
    fuse_wgrad_accumulation: bool = False,
    backend: str = "emulated",
) -> nn.Module:
    """Make each linear layer that takes part one of class `modules.Linear`, in place.

    As in Megatron's and Transformer Engine's models, those are the linear layers of transformer
    blocks: every `nn.Linear` (and no subclass, which computes something else) of `model.blocks`, or
    of the whole model where it has no `blocks`; but for those that share their weight with another
    module, as a tied output layer does, or that have several names themselves, and those of a
    module whose attribute `high_precision` is true, as a router says of itself. Embeddings, norms
    and output layers stay as they are.

    Modules, with their hooks, and parameters remain the same objects under the same names, but for
    the weights where the primary weight is quantized; these train if the ones before them did.

    Args:
        model: on its device and in its dtype already.
        precision: of cells. A model in fp32, bf16 or fp16 is left alone, unless its accumulation
            is to be fused, which is known in bf16 only.
        primary_weight: of cells. "quantized" makes a `QuantizedParameter` of each weight that takes
            part; others say what dtype the model is in already.
        fuse_wgrad_accumulation: of the layers that are made; each weight then needs a `main_grad`.
        backend: of the layers that are made.

    Returns:
        The model.

    Raises:
        TypeError: for something else than a module.
        ValueError: no layer takes part, or the precision cannot do what is asked for.
    """
    _expect(model, precision, primary_weight)
    if not PRECISIONS[precision].quantized:
        if not fuse_wgrad_accumulation:
            return model
        if precision != UNQUANTIZED:
            raise ValueError(
                expected_but_got(
                    "bf16 or a quantized precision",
                    named("precision", precision),
                    "weight gradients of others are not accumulated by the GEMM",
                )
            )
    taking_part = dict(_linears(model))
    if not taking_part:
        raise ValueError(
            expected_but_got(
                "an nn.Linear that takes part",
                f"none ({type(model).__name__})",
                "put the layers to be quantized into `blocks`, as modules of class nn.Linear "
                "itself",
            )
        )
    for name, linear in taking_part.items():
        made = Linear.made_of(linear, precision, name, backend)
        made.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        if primary_weight == "quantized":
            quantizers = cast(Quantizers, made.quantizers[0])
            parameter = QuantizedParameter.of(made.weight, quantizers.weight)
            parameter.requires_grad_(made.weight.requires_grad)
            made.weight = cast(nn.Parameter, parameter)
    return model


def _expect(model: object, precision: str, primary_weight: str) -> None:
    """Raise where there is no model, or no such cell."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            expected_but_got(
                "an nn.Module",
                named("model", model),
                "give the model whose layers are to be quantized",
            )
        )
    if precision not in PRECISIONS:
        raise ValueError(
            expected_but_got(
                "a precision", named("precision", precision), f"use one of {', '.join(PRECISIONS)}"
            )
        )
    known = PRECISIONS[precision].primary_weights
    if primary_weight not in known:
        raise ValueError(
            expected_but_got(
                f"a primary weight of {precision}",
                named("primary_weight", primary_weight),
                f"use one of {', '.join(known)}",
            )
        )


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    named = [*model.named_modules(remove_duplicate=False)]
    holders = Counter(id(p) for _, module in named for p in module.parameters(recurse=False))
    prefix = "blocks." if hasattr(model, "blocks") else ""
    high_precision = [
        name
        for name, module in named
        if getattr(module, "high_precision", False)
        or any(holders[id(p)] > 1 for p in module.parameters(recurse=False))
    ]
    for name, module in named:
        stays = any(name == high or name.startswith(f"{high}.") for high in high_precision)
        if type(module) is nn.Linear and name.startswith(prefix) and not stays:
            yield name, module
