"""fp8 with one fp32 scale per tensor, from the amax of the same tensor (current scaling)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial

import torch

from pytest_precision.formats.block_amaxes import checked_amaxes
from pytest_precision.formats.elements import ELEMENT_OF_NAME, Element
from pytest_precision.formats.format import Makers, Reducible
from pytest_precision.formats.inputs import Usage, check_fields, checked_matrix, checked_usage
from pytest_precision.formats.quantized import Operand, QuantizedTensor, Storage
from pytest_precision.formats.scaling import ReduceAmax, scale_from_amax, tensor_amax
from pytest_precision.formats.tiles import empty_scratch, own_transpose, tile_spans


class PerTensor(Reducible):
    """A format whose scales depend on one amax per tensor."""

    __slots__ = ()

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the amax of a matrix, fp32 [1]."""
        return tensor_amax(checked_matrix(x))

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by a given amax, fp32 [1], which is not reduced over ranks again.

        Raises:
            TypeError: `quantize` would raise it, or `amaxes` is not fp32.
            ValueError: `quantize` would raise it, or `amaxes` is not one number.
        """
        x = checked_matrix(x)
        return self._quantized(x, checked_amaxes(amaxes, 1, x), usage)

    @abstractmethod
    def _quantized(self, x: torch.Tensor, amax: torch.Tensor, usage: Usage) -> QuantizedTensor:
        """Quantize a matrix to this format, given its amax (fp32, shape [1])."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurrentScaling(PerTensor):
    """Per-tensor fp8 with current scaling; the columnwise operand is the rowwise one, transposed.

    Attributes:
        name: name of the format.
        element: e4m3 or e5m2.
        power_of_two: whether the scale is rounded down to a power of two.
        epsilon: lower bound of the amax; a smaller amax is replaced by it.
        reduce_amax: MAX over the ranks that hold parts of the tensor; None if one rank holds all.
    """

    name: str
    element: Element
    power_of_two: bool = False
    epsilon: float = 0.0
    reduce_amax: ReduceAmax | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def _reduced(self, amaxes: torch.Tensor) -> torch.Tensor:
        return amaxes if self.reduce_amax is None else self.reduce_amax(amaxes)

    def _quantized(self, x: torch.Tensor, amax: torch.Tensor, usage: Usage) -> QuantizedTensor:
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
    """Multiply a matrix by one scale for the whole tensor, and cast the product to fp8.

    Args:
        name: name of the format.
        x: the matrix.
        scale: fp32 [1].
        amax: fp32 [1], stored in the operands.
        element: e4m3 or e5m2.
        usage: which operands to make.
    """
    rowwise, columnwise = checked_usage(usage)
    data = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    for rows, columns in tile_spans(x.shape[0], x.shape[1], x.device):
        part = x[rows, columns]
        values = empty_scratch("values", tuple(part.shape), x)
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
        # Separate bytes, as the kernels write them: a transpose that is not updated must go stale.
        storage = Storage(element, "fp32", transposed=True)
        operands["columnwise"] = Operand(own_transpose(data), inverse, amax, storage)
    return QuantizedTensor(name, (x.shape[0], x.shape[1]), operands)


FORMATS: Makers = {
    f"fp8_current_{element}{scales}": partial(
        CurrentScaling, element=ELEMENT_OF_NAME[element], power_of_two=bool(scales)
    )
    for element in ELEMENT_OF_NAME
    for scales in ("", "_pow2")
}
