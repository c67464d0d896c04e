"""The 8-bit floating-point elements e4m3 and e5m2, and the power-of-two scale e8m0.

Sources: OCP 8-bit Floating Point Specification 1.0 (elements), OCP Microscaling Formats 1.0 (e8m0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats.tiles import empty_scratch


class Coding(ABC):
    """How numbers are encoded in the bytes of an operand.

    Attributes:
        per_byte: how many elements of a row share a byte.
    """

    __slots__ = ()

    per_byte: ClassVar[int] = 1

    @abstractmethod
    def decode(self, data: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Decode an operand's bytes to fp32 values in `out`, and return `out`."""

    def unpacked(self, data: torch.Tensor) -> torch.Tensor:
        """Return the codes in an operand's bytes, one byte per element."""
        return data

    def pack_(self, codes: torch.Tensor, out: torch.Tensor) -> None:
        """Store codes, given as one byte per element, in `out` as an operand's bytes."""
        out.copy_(codes)


@dataclass(frozen=True, slots=True)
class Element(Coding):
    """An 8-bit floating-point element: its name, dtype, largest value and exponent.

    Attributes:
        name: its name, which is a part of the names of formats.
        maximum: the largest finite value.
        reciprocal: 1 / maximum, rounded to fp32.
        exponent: the exponent of the largest power of two that it can represent.
        dtype: torch's dtype of the element.
    """

    name: str
    maximum: float
    reciprocal: float
    exponent: int
    dtype: torch.dtype

    def cast_(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Round fp32 `values` to nearest even into the bytes of `out`, saturating; NaN stays NaN.

        `values` is overwritten.
        """
        # torch's own cast saturates only since 2.12, and for e5m2 not even there.
        values.clamp_(-self.maximum, self.maximum)
        out.view(self.dtype).copy_(values)

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Decode bytes of this element to fp32 values in `out`, and return `out`.

        The conversion goes through fp16, which takes a tenth of the time of torch's cast from e4m3:
        the bits of e5m2 are the upper half of an fp16 number; the bits of e4m3, shifted to the
        fields of an fp16 number, give the value divided by 2**8.
        """
        wide_tensor = empty_scratch("wide", tuple(data.shape), data, torch.int16)
        if self.name == "e5m2":
            wide_tensor.copy_(data).bitwise_left_shift_(8)
            return out.copy_(wide_tensor.view(torch.float16))
        wide_tensor.copy_(data.view(torch.int8)).mul_(1 << 7).bitwise_and_(_E4M3_BITS)
        out.copy_(wide_tensor.view(torch.float16)).mul_(256.0)
        # The code of NaN in e4m3 has become a number: 480.
        if data.numel() and (data.amax() == 0xFF or data.view(torch.int8).amax() == 0x7F):
            out.masked_fill_(data.bitwise_and(0x7F) == 0x7F, float("nan"))
        return out


E4M3 = Element("e4m3", 448.0, float.fromhex("0x1.24924ap-9"), 8, torch.float8_e4m3fn)
E5M2 = Element("e5m2", 57344.0, float.fromhex("0x1.24924ap-16"), 15, torch.float8_e5m2)

_E4M3_BITS = -0x4080
"""In fp16, the sign, the lower four bits of the exponent and the upper three of the mantissa."""

ELEMENT_OF_NAME = {element.name: element for element in (E4M3, E5M2)}


def element_named(name: str) -> Element:
    """Return the 8-bit element type of a name, "e4m3" or "e5m2".

    Raises:
        ValueError: the name is unknown; the message lists the known ones.
    """
    if name not in ELEMENT_OF_NAME:
        raise ValueError(
            expected_but_got(
                "the name of an element type",
                named("element", name),
                f"use one of {', '.join(ELEMENT_OF_NAME)}",
            )
        )
    return ELEMENT_OF_NAME[name]


def e8m0_decode(codes: torch.Tensor) -> torch.Tensor:
    """Decode e8m0 bytes to 2**(code - 127) in fp32; code 0 is subnormal, code 255 is NaN."""
    bits = codes.to(torch.int32)
    not_a_number = (bits == 0xFF).to(torch.int32) << 22
    return bits.bitwise_left_shift_(23).clamp_(min=1 << 22).add_(not_a_number).view(torch.float32)
