"""The 8-bit floating-point elements e4m3 and e5m2, and the power-of-two scale e8m0.

OCP 8-bit Floating Point Specification 1.0 for the elements, OCP Microscaling Formats 1.0 for e8m0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from pytest_precision.errors import expected_but_got, named
from pytest_precision.formats.tiles import scratch


class Coding(ABC):
    """How numbers are coded in the bytes of an operand.

    Attributes:
        per_byte: how many elements of a row share a byte.
    """

    __slots__ = ()

    per_byte: ClassVar[int] = 1

    @abstractmethod
    def decode(self, data: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Put the fp32 values of bytes into `out`, and return it."""

    def unpacked(self, data: torch.Tensor) -> torch.Tensor:
        """Return the codes in these bytes, one byte per element."""
        return data

    def pack_(self, codes: torch.Tensor, out: torch.Tensor) -> None:
        """Store codes that have one byte per element."""
        out.copy_(codes)


@dataclass(frozen=True, slots=True)
class Element(Coding):
    """An 8-bit floating-point element.

    Attributes:
        name: as it stands in the names of the formats.
        maximum: the largest finite value.
        reciprocal: 1 / maximum, rounded to fp32.
        exponent: of the largest power of two that is representable.
        dtype: torch's name for it.
    """

    name: str
    maximum: float
    reciprocal: float
    exponent: int
    dtype: torch.dtype

    def cast_(self, values: torch.Tensor, out: torch.Tensor) -> None:
        """Round fp32 `values` to nearest even into the bytes of `out`, saturating; NaN stays NaN.

        `values` is overwritten. The clamp is there because torch's own cast saturates only from
        2.12 on, and e5m2 not even there.
        """
        values.clamp_(-self.maximum, self.maximum)
        out.view(self.dtype).copy_(values)

    def decode(self, data: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The fp32 values of bytes, in `out`.

        By way of fp16, which takes a tenth of the time of torch's cast from e4m3: e5m2 is the upper
        half of an fp16 number, and e4m3 in its place is smaller by 2**8.
        """
        wide = scratch("wide", tuple(data.shape), data, torch.int16)
        if self.name == "e5m2":
            wide.copy_(data).bitwise_left_shift_(8)
            return out.copy_(wide.view(torch.float16))
        wide.copy_(data.view(torch.int8)).mul_(1 << 7).bitwise_and_(_E4M3_BITS)
        out.copy_(wide.view(torch.float16)).mul_(256.0)
        # What stands for NaN in e4m3 is a number in fp16: 480.
        if data.numel() and (data.amax() == 0xFF or data.view(torch.int8).amax() == 0x7F):
            out.masked_fill_(data.bitwise_and(0x7F) == 0x7F, float("nan"))
        return out


E4M3 = Element("e4m3", 448.0, float.fromhex("0x1.24924ap-9"), 8, torch.float8_e4m3fn)
E5M2 = Element("e5m2", 57344.0, float.fromhex("0x1.24924ap-16"), 15, torch.float8_e5m2)

_E4M3_BITS = -0x4080
"""In fp16, the sign, the lower four bits of the exponent and the upper three of the mantissa."""

ELEMENTS = {element.name: element for element in (E4M3, E5M2)}


def element_named(name: str) -> Element:
    """The element of this name.

    Raises:
        ValueError: an unknown name; the known ones are listed.
    """
    if name not in ELEMENTS:
        raise ValueError(
            expected_but_got(
                "an element", named("element", name), f"use one of {', '.join(ELEMENTS)}"
            )
        )
    return ELEMENTS[name]


def e8m0_decode(codes: torch.Tensor) -> torch.Tensor:
    """2**(code - 127) in fp32 of e8m0 bytes; code 0 is the subnormal 2**-127, code 255 is NaN."""
    bits = codes.to(torch.int32)
    not_a_number = (bits == 0xFF).to(torch.int32) << 22
    return bits.bitwise_left_shift_(23).clamp_(min=1 << 22).add_(not_a_number).view(torch.float32)
