"""Replacement of a model's linear layers by quantized ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

from torch import nn

from pytest_precision.errors import expect_one_of, expect_type, expected_but_got, named
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
    """Turn the `nn.Linear` layers of a model into quantized ones, in place.

    As in Megatron's and Transformer Engine's models, the linear layers of transformer blocks take
    part: every `nn.Linear` (not a subclass, which computes something else) in `model.blocks`, or in
    the whole model if it has no `blocks`. Exceptions are layers that share their weight with
    another module, as a tied output layer does, layers that have several names, and layers in or
    below a module whose attribute `high_precision` is true, such as a router. Embeddings, norms and
    output layers stay as they are.

    Modules, their hooks and parameters remain the same objects under the same names; only weights
    are replaced if the primary weight is quantized, and keep their `requires_grad`.

    Args:
        model: the model, already on its device and in its dtype.
        precision: a precision of cells. A model in fp32, bf16 or fp16 is left unchanged unless
            fused accumulation is requested, which of these only bf16 supports.
        primary_weight: a primary weight of cells. "quantized" replaces each weight that takes part
            by a `QuantizedParameter`; others name the dtype that the model already has.
        fuse_wgrad_accumulation: attribute of the new layers; if true, each weight needs a
            `main_grad`.
        backend: backend of the new layers.

    Returns:
        The model.

    Raises:
        TypeError: `model` is not a module.
        ValueError: no layer takes part, a name is unknown, or the precision does not support the
            primary weight or fused accumulation.
    """
    _expect(model, precision, primary_weight)
    if not PRECISIONS[precision].quantized:
        if not fuse_wgrad_accumulation:
            return model
        if precision != UNQUANTIZED:
            raise ValueError(
                expected_but_got(
                    "bf16 or a quantized precision for fuse_wgrad_accumulation=True",
                    named("precision", precision),
                    "leave fuse_wgrad_accumulation out: other GEMMs do not accumulate",
                )
            )
    taking_part = dict(_linears(model))
    if not taking_part:
        raise ValueError(
            expected_but_got(
                "an nn.Linear that can be quantized",
                f"{type(model).__name__}, which has none",
                "put the layers to be quantized into `blocks`, as modules of class nn.Linear "
                "itself",
            )
        )
    for name, linear in taking_part.items():
        layer = Linear.made_of(linear, precision, name, backend)
        layer.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        if primary_weight == "quantized":
            quantizers = cast(Quantizers, layer.quantizers[0])
            parameter = QuantizedParameter.of(layer.weight, quantizers.weight)
            parameter.requires_grad_(layer.weight.requires_grad)
            layer.weight = cast(nn.Parameter, parameter)
    return model


def _expect(model: object, precision: str, primary_weight: str) -> None:
    """Raise if `model` is no module, or if `precision` or `primary_weight` is unknown."""
    expect_type(
        "model", model, nn.Module, "an nn.Module", "give the model whose layers are to be quantized"
    )
    expect_one_of("precision", precision, PRECISIONS)
    choices = PRECISIONS[precision].primary_weights
    expect_one_of("primary_weight", primary_weight, choices, f"{precision} has no others")


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
