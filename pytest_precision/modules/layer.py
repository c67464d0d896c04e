"""The base class of this package's linear layers, with one weight or with one per expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from pytest_precision.engine.quantizing import Quantizing
from pytest_precision.errors import expected_but_got
from pytest_precision.formats.quantized import QuantizedTensor
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.modules.multiply import (
    COMPUTE,
    Call,
    Multiply,
    PlainProduct,
    Product,
    QuantizedProduct,
)
from pytest_precision.modules.padding import quantize_padded
from pytest_precision.modules.parameter import QuantizedParameter, quantized_parameters, tensors_of
from pytest_precision.modules.rng import RoundingRng
from pytest_precision.modules.slots import Quantizers

UNQUANTIZED = "bf16"
"""The precision of a layer that quantizes nothing; its only purpose is fused accumulation."""


class Layer(Quantizing):
    """A layer that quantizes its weights once for all microbatches of a step.

    Attributes:
        precision: a quantized precision of cells, or bf16.
        quantizers: the quantizers per weight; empty in bf16.
        streams: the name of the random bits per weight. If a layer has none yet,
            `begin_microbatch` sets them from its name in the model.
        fuse_wgrad_accumulation: whether weight gradients are accumulated into the `main_grad` of
            the parameters.
        is_first_microbatch: True quantizes the weights and keeps the result, False uses the kept
            result, None quantizes in every forward. Quantized parameters are used as they are.
        step: number of the train step.
        microbatch: number of the microbatch among those of all ranks.
        used_weights: the quantized weights of the last forward, one per weight; empty in bf16, and
            before the first forward.
    """

    def _start(
        self,
        precision: str,
        weights: int,
        device: torch.device,
        backend: str,
    ) -> None:
        """Set the layer's attributes, such as quantizers for each weight, but no parameters."""
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
        self.taken = set()

    def _multiply(
        self,
        x: Tensor,
        counts: Sequence[int],
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        *,
        grouped: bool,
    ) -> Tensor:
        """Return y, bf16 [rows, out], for the rows of x [rows, in], each times one of the weights.

        `counts` is the number of rows of x per weight.
        """
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

    def begin_microbatch(self, name: str, step: int, microbatch: int, *, first: bool) -> None:
        """Set step and microbatch, and whether the next forward quantizes the weights anew."""
        self.streams = self.streams or self.streams_at(name)
        self.is_first_microbatch = first
        self.step = step
        self.microbatch = microbatch

    def used_quantized(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the operands of the last forward's weights, named as `up.weight.rowwise.data`."""
        for place, used_quantized_tensor in enumerate(self.used_weights):
            number = "" if isinstance(self, nn.Linear) else str(place)
            for key, tensor in tensors_of(used_quantized_tensor):
                weight = f"{name}.weight{number}".lstrip(".")
                yield TensorKey(weight, key).name("used_quantized"), tensor

    def streams_at(self, name: str) -> list[str]:
        """Return the names of random-bit streams, one per weight, made from the layer's name."""
        number = len(self.quantizers)
        return [name] if number == 1 else [f"{name}.{n}".lstrip(".") for n in range(number)]

    def _refresh(self, weights: Sequence[Tensor], grouped: bool) -> None:
        """Take quantized parameters as `used_weights`; quantize others if they may have changed."""
        if isinstance(weights[0], QuantizedParameter):
            self.used_weights = [
                member
                for weight in cast(Sequence[QuantizedParameter], weights)
                for member in weight.members
            ]
        elif self.is_first_microbatch is not False or not self.used_weights:
            each = weights[0].detach().unbind() if grouped else weights
            self.used_weights = [
                quantize_padded(cast(Quantizers, quantizers).weight, weight.detach().to(COMPUTE))
                for quantizers, weight in zip(self.quantizers, each, strict=True)
            ]

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep: bool) -> None:
        """Save each quantized parameter as its bytes and scales."""
        super()._save_to_state_dict(destination, prefix, keep)
        for name, parameter in quantized_parameters(self):
            del destination[prefix + name]
            for key, tensor in parameter.stored.items():
                destination[f"{prefix}{name}.{key}"] = tensor

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        """Load each quantized parameter completely, or not at all."""
        missing, unexpected, errors = cast(tuple[list[str], ...], rest[2:])
        others = dict(state_dict)
        for name, parameter in quantized_parameters(self):
            stored = {f"{prefix}{name}.{key}": tensor for key, tensor in parameter.stored.items()}
            loaded = {key: others.pop(key) for key in stored if key in others}
            unfit = [key for key in loaded if not _same_kind(loaded[key], stored[key])]
            missing += [key for key in stored if key not in loaded]
            errors += [_refused(key, loaded[key], stored[key]) for key in unfit]
            if len(loaded) == len(stored) and not unfit:
                for key, tensor in stored.items():
                    tensor.copy_(loaded[key])
            if others.pop(prefix + name, None) is not None:  # a checkpoint in high precision
                unexpected.append(prefix + name)
        super()._load_from_state_dict(others, prefix, *rest)
        for name, _ in quantized_parameters(self):
            missing.remove(prefix + name)


def _same_kind(loaded: object, stored_tensor: Tensor) -> bool:
    return isinstance(loaded, Tensor) and (loaded.dtype, loaded.shape) == (
        stored_tensor.dtype,
        stored_tensor.shape,
    )


def _refused(key: str, loaded: object, stored_tensor: Tensor) -> str:
    kind = f"{loaded.dtype} {tuple(loaded.shape)} " if isinstance(loaded, Tensor) else ""
    return expected_but_got(
        f"{key} to be {stored_tensor.dtype} {tuple(stored_tensor.shape)}",
        f"{kind}({type(loaded).__name__})",
        "load a checkpoint of the same precision",
    )
