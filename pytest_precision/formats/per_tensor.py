"""fp8 with one fp32 scale a tensor, from the amax of that very tensor (current scaling)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from pytest_precision.formats.amaxes import checked_amaxes
from pytest_precision.formats.elements import ELEMENTS, Element
from pytest_precision.formats.format import Makers, Reducible
from pytest_precision.formats.inputs import Usage, checked_matrix, checked_usage, refuse_random_bits
from pytest_precision.formats.options import check_fields
from pytest_precision.formats.quantized import Operand, QuantizedTensor, Storage
from pytest_precision.formats.scaling import ReduceAmax, scale_from_amax, tensor_amax
from pytest_precision.formats.tiles import scratch, spans


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentScaling(Reducible):
    """Per-tensor fp8 with current scaling.

    Attributes:
        name: of the format.
        element: e4m3 or e5m2.
        power_of_two: round the scale down to a power of two.
        epsilon: least amax that is believed.
        reduce_amax: MAX over the ranks that hold parts of the tensor, where there are any.
    """

    name: str
    element: Element
    power_of_two: bool = False
    epsilon: float = 0.0
    reduce_amax: ReduceAmax | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def quantize(
        self, x: torch.Tensor, random_bits: None = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix; the columnwise operand is the transpose of the rowwise one.

        Raises:
            TypeError: `x` is no tensor of fp32, bf16 or fp16; there are random bits.
            ValueError: `x` is no matrix; an unknown usage.
        """
        refuse_random_bits(random_bits, self.name)
        amax = self.amaxes(x)
        if self.reduce_amax is not None:
            amax = self.reduce_amax(amax)
        return self.quantize_with(x, amax, usage=usage)

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """The amax of a matrix, fp32 [1]."""
        return tensor_amax(checked_matrix(x))

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """As `quantize`, by an amax that is not that of `x`, and that is not reduced any further.

        Raises:
            TypeError: as `quantize`, and for an amax that is not fp32.
            ValueError: as `quantize`, and for more than one amax.
        """
        x = checked_matrix(x)
        amax = checked_amaxes(amaxes, 1, x)
        scale = scale_from_amax(
            amax, self.element.maximum, power_of_two=self.power_of_two, epsilon=self.epsilon
        )
        return quantize_by(self.name, x, scale, amax, self.element, usage)


def quantize_by(
    name: str,
    x: torch.Tensor,
    scale: torch.Tensor,
    amax: torch.Tensor,
    element: Element,
    usage: Usage,
) -> QuantizedTensor:
    """Multiply by a scale of the whole tensor and cast.

    Args:
        name: of the format.
        x: the matrix.
        scale: fp32 [1].
        amax: fp32 [1], kept beside the bytes.
        element: e4m3 or e5m2.
        usage: which operands to make.
    """
    rowwise, columnwise = checked_usage(usage)
    data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    for rows, columns in spans(x.shape[0], x.shape[1], x.device):
        part = x[rows, columns]
        values = scratch("values", tuple(part.shape), x)
        if part.dtype is torch.float32:
            torch.mul(part, scale, out=values)
        else:
            values.copy_(part).mul_(scale)
        element.cast_(values, data[rows, columns])
    inverse = scale.reciprocal()
    operands = {}
    if rowwise:
        storage = Storage(element, "fp32")
        operands["rowwise"] = Operand(data, inverse, amax, storage)
    if columnwise:
        # Bytes of its own, as the kernels write them: a transpose that goes stale must be able to.
        storage = Storage(element, "fp32", transposed=True)
        operands["columnwise"] = Operand(data.t().contiguous(), inverse, amax, storage)
    return QuantizedTensor(name, (x.shape[0], x.shape[1]), operands)


FORMATS: Makers = {
    f"fp8_current_{element}{scales}": partial(
        CurrentScaling, element=ELEMENTS[element], power_of_two=bool(scales)
    )
    for element in ELEMENTS
    for scales in ("", "_pow2")
}
