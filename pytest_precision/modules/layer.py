"""Layer: what linear layers with one weight and with many have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.modules.multiply import (
    COMPUTE,
    Call,
    Multiply,
    PlainProduct,
    Product,
    QuantizedProduct,
)
from pytest_precision.modules.padding import quantize
from pytest_precision.modules.parameter import QuantizedParameter, quantized_parameters
from pytest_precision.modules.rng import RoundingRng
from pytest_precision.modules.slots import Quantizers

UNQUANTIZED = "bf16"
"""The precision of a layer that quantizes nothing, and is here for fused accumulation alone."""


class Layer(nn.Module):
    """Weights that are quantized once for all microbatches of a step, and the quantizers of each.

    Attributes:
        precision: of cells: a quantized one, or bf16.
        quantizers: one a weight; none in bf16.
        streams: one a weight: names of its random bits. `begin_microbatch` names those of a layer
            that has none yet by its place in the model.
        fuse_wgrad_accumulation: accumulate weight gradients into `main_grad` of the parameters.
        is_first_microbatch: True quantizes the weights and keeps them, False takes what was kept,
            None quantizes at every forward. Quantized parameters are taken as they are.
        step: number of the train step.
        microbatch: its number among those of all ranks.
        used_weights: what the last forward multiplied by, a weight each; empty in bf16, and before
            the first one.
        taken: paths of `contract.PATHS` that a forward has taken.
    """

    def _start(
        self,
        precision: str,
        weights: int,
        device: torch.device,
        backend: str,
    ) -> None:
        """Everything but the parameters, whose device is given."""
        number = 0 if precision == UNQUANTIZED else weights
        self.quantizers = nn.ModuleList(
            Quantizers(precision, device, backend) for _ in range(number)
        )
        self.precision = precision
        self.streams: list[str] = []
        self.fuse_wgrad_accumulation = False
        self.is_first_microbatch: bool | None = None
        self.step = self.microbatch = 0
        self.used_weights: list[QuantizedTensor] = []
        self.taken: set[str] = set()

    def _multiply(
        self,
        x: Tensor,
        counts: Sequence[int],
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        *,
        grouped: bool,
    ) -> Tensor:
        """y, bf16 [rows, out], of x [rows, in], of which each weight gets `counts` rows."""
        call = Call(
            self._products(weights, grouped),
            counts,
            grouped,
            self.fuse_wgrad_accumulation,
            torch.is_grad_enabled(),
        )
        ways = {
            "fused": call.fused and call.backward,
            "grouped": grouped,
            "quantized": isinstance(weights[0], QuantizedParameter),
        }
        self.taken.update(path for path, taken in ways.items() if taken)
        parameters = (*weights, *biases)
        result: Tensor = Multiply.apply(x.to(COMPUTE), call, len(weights), *parameters)  # type: ignore[no-untyped-call]
        return result

    def _products(self, weights: Sequence[Tensor], grouped: bool) -> list[Product]:
        if self.precision == UNQUANTIZED:
            each = weights[0].detach().unbind() if grouped else weights
            return [PlainProduct(weight.detach().to(COMPUTE)) for weight in each]
        self._refresh(weights, grouped)
        rows, columns = weights[0].shape[-2:]
        streams = self.streams or self.streams_at("")
        return [
            QuantizedProduct(
                cast(Quantizers, quantizers),
                used,
                (rows, columns),
                RoundingRng(stream, self.step, self.microbatch),
            )
            for quantizers, used, stream in zip(
                self.quantizers, self.used_weights, streams, strict=True
            )
        ]

    def streams_at(self, name: str) -> list[str]:
        """The streams of the layer of this name in a model."""
        number = len(self.quantizers)
        return [name] if number == 1 else [f"{name}.{n}".lstrip(".") for n in range(number)]

    def _refresh(self, weights: Sequence[Tensor], grouped: bool) -> None:
        """Bring `used_weights` up to date."""
        if isinstance(weights[0], QuantizedParameter):
            self.used_weights = [
                member
                for weight in cast(Sequence[QuantizedParameter], weights)
                for member in weight.members
            ]
        elif self.is_first_microbatch is not False or not self.used_weights:
            each = weights[0].detach().unbind() if grouped else weights
            self.used_weights = [
                quantize(cast(Quantizers, quantizers).weight, weight.detach().to(COMPUTE))
                for quantizers, weight in zip(self.quantizers, each, strict=True)
            ]

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep: bool) -> None:
        """A quantized parameter is saved as the bytes and scales that it consists of."""
        super()._save_to_state_dict(destination, prefix, keep)
        for name, parameter in quantized_parameters(self):
            del destination[prefix + name]
            for key, tensor in parameter.stored.items():
                destination[f"{prefix}{name}.{key}"] = tensor

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        """A quantized parameter is loaded whole, or not at all."""
        missing, unexpected, errors = cast(tuple[list[str], ...], rest[2:])
        others = dict(state_dict)
        for name, parameter in quantized_parameters(self):
            stored = {f"{prefix}{name}.{key}": held for key, held in parameter.stored.items()}
            given = {key: others.pop(key) for key in stored if key in others}
            unfit = [key for key in given if not _same_kind(given[key], stored[key])]
            missing += [key for key in stored if key not in given]
            errors += [_refused(key, given[key], stored[key]) for key in unfit]
            if len(given) == len(stored) and not unfit:
                for key, held in stored.items():
                    held.copy_(given[key])
            if others.pop(prefix + name, None) is not None:  # a checkpoint in high precision
                unexpected.append(prefix + name)
        super()._load_from_state_dict(others, prefix, *rest)
        for name, _ in quantized_parameters(self):
            missing.remove(prefix + name)


def _same_kind(given: object, held: Tensor) -> bool:
    return isinstance(given, Tensor) and (given.dtype, given.shape) == (held.dtype, held.shape)


def _refused(key: str, given: object, held: Tensor) -> str:
    kind = f"{given.dtype} {tuple(given.shape)} " if isinstance(given, Tensor) else ""
    return expected_but_got(
        f"{key} to be {held.dtype} {tuple(held.shape)}",
        f"{kind}({type(given).__name__})",
        "load a checkpoint of the same precision",
    )


def begin_microbatch(model: nn.Module, step: int, microbatch: int, *, first: bool) -> None:
    """Say which microbatch the next forward of `model` computes.

    Args:
        model: with layers of this package, or without.
        step: number of the train step.
        microbatch: its number among those of all ranks; with the step it chooses random bits.
        first: weights have moved since the last one: quantize them anew.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, Layer):
            layer.streams = layer.streams or layer.streams_at(name)
            layer.is_first_microbatch, layer.step, layer.microbatch = first, step, microbatch
