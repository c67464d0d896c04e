"""NVFP4: e2m1 with one e4m3 scale per 16 elements and one fp32 amax per tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.formats import hadamard
from pytest_precision.formats.block_amaxes import amaxes_of_blocks, by_block
from pytest_precision.formats.format import Makers, Reducible
from pytest_precision.formats.four_over_six import ErrorMode, quantized_with_less_error
from pytest_precision.formats.inputs import (
    RandomBits,
    Usage,
    check_fields,
    checked_matrix,
    checked_random_bits,
    checked_usage,
    refuse_random_bits,
)
from pytest_precision.formats.packed import NVFP4_BLOCK, PackedOperand
from pytest_precision.formats.quantized import QuantizedTensor, ScaleKind
from pytest_precision.formats.scaling import (
    ReduceAmax,
    nvfp4_scaling,
    nvfp4_scaling_torchao,
    row_amaxes,
    tensor_amax,
)
from pytest_precision.formats.tiles import Block, tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvfp4(Reducible):
    """NVFP4: 4-bit elements with an fp8 scale per 16 elements and an fp32 scale per tensor.

    The rowwise operand is the input, the columnwise one the transposed input. Each has blocks of 16
    along its rows and is quantized by itself from high precision.

    Attributes:
        name: name of the format.
        two_dimensional: whether 16 x 16 elements share a scale, which is stored 16 times; the codes
            of the columnwise operand are then those of the rowwise operand, transposed.
        hadamard: whether the columnwise operand is made of the Hadamard transform; bf16 only.
        stochastic: whether to round stochastically, by random bits that the caller passes. The
            kernels draw theirs in their own order: equal bits give equal codes, equal seeds do not.
        scaling: whose arithmetic computes the scales of blocks.
        row_scaled: whether each row of an operand has an amax of its own instead of the tensor.
        four_over_six: whether each block gets that of two scales which leaves the smaller error.
        error: the error of a block, as a sum of magnitudes or of squares.
        scale_maximum: the largest scale of a block, 448 or 256.
        scaled_error: whether errors are those of values before the division by the tensor's scale.
        reduce_amax: MAX over the ranks that hold parts of the tensor; None if one rank holds all.
    """

    name: str
    two_dimensional: bool = False
    hadamard: bool = False
    stochastic: bool = False
    scaling: Literal["transformer_engine", "torchao"] = "transformer_engine"
    row_scaled: bool = False
    four_over_six: bool = False
    error: ErrorMode = "MAE"
    scale_maximum: int = 448
    scaled_error: bool = False
    reduce_amax: ReduceAmax | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        other = self.hadamard or self.stochastic or self.scaling == "torchao"
        alone = self.two_dimensional or self.reduce_amax is not None
        choices = (self.error, self.scale_maximum, self.scaled_error) != ("MAE", 448, False)
        for problem, expected in (
            (
                self.row_scaled and (other or alone),
                "row_scaled without hadamard, stochastic, torchao, two_dimensional or reduce_amax",
            ),
            (self.four_over_six and other, "four_over_six without hadamard, stochastic or torchao"),
            (choices and not self.four_over_six, "options of 4over6 with four_over_six=True only"),
        ):
            if problem:
                advice = "leave out the options that do not go together"
                raise ValueError(expected_but_got(expected, repr(self), advice))

    @property
    def block_multiple(self) -> int:
        """The number by which rows and columns must be divisible: blocks are never partial."""
        return NVFP4_BLOCK

    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix to NVFP4.

        Args:
            x: [rows, columns], multiples of 16.
            random_bits: if the format is stochastic, a pair of uint8 tensors: [rows, columns] for
                the rowwise operand, [columns, rows] for the columnwise one.
            usage: which operands to make.

        Raises:
            TypeError: `x` or a tensor of random bits is not a tensor of a suitable dtype, or random
                bits are given and the format rounds to nearest.
            ValueError: `x` or a tensor of random bits has an unsuitable shape, or `usage` is
                unknown.
        """
        x = self.checked(x)
        rowwise, columnwise = checked_usage(usage)
        bits: RandomBits = (None, None)
        if self.stochastic:
            bits = checked_random_bits(random_bits, x, usage, self.name)
        else:
            refuse_random_bits(random_bits, self.name)
        turned_tensor = hadamard.transformed(x) if columnwise and self.hadamard else x
        operands: dict[str, PackedOperand] = {}
        if rowwise:
            operands["rowwise"] = PackedOperand(
                x, self._amax(x, transposed=False), self._kind, bits[0], transposed=False
            )
        if columnwise:
            shares_amax = rowwise and turned_tensor is x and not self.row_scaled
            amax = (
                operands["rowwise"].amax
                if shares_amax
                else self._amax(turned_tensor, transposed=True)
            )
            operands["columnwise"] = PackedOperand(
                turned_tensor, amax, self._kind, bits[1], transposed=True
            )
        if turned_tensor is x:
            self._fill(x, list(operands.values()))
        else:
            for side, source in (("rowwise", x), ("columnwise", turned_tensor)):
                self._fill(source, [operands[side]] if side in operands else [])
        return QuantizedTensor(
            self.name,
            (x.shape[0], x.shape[1]),
            {side: operand.finished() for side, operand in operands.items()},
        )

    def checked(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x`, detached, if this format can quantize it; raise otherwise.

        Raises:
            TypeError: `x` is not a tensor of fp32, bf16 or fp16 (of bf16 for a Hadamard transform).
            ValueError: `x` is not a matrix with values, or its dimensions are not multiples of 16.
        """
        x = checked_matrix(x, multiple=NVFP4_BLOCK)
        if self.hadamard and x.dtype is not torch.bfloat16:
            raise TypeError(
                expected_but_got(
                    f"x of dtype torch.bfloat16 for {self.name}",
                    f"x.dtype={x.dtype} (dtype)",
                    "cast x, since the kernels transform bf16 only",
                )
            )
        return x

    def amaxes(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the amax of a matrix, then those of all its blocks; fp32, flat.

        Raises:
            TypeError: `x` is not a tensor of fp32, bf16 or fp16.
            ValueError: `x` is not a matrix of multiples of 16, or the amaxes of the format are not
                those of parts of the input.
        """
        x = self._read_as_it_is(x)
        return torch.cat((self._own_amax(x), amaxes_of_blocks(x, self._blocks)))

    def quantize_with(
        self, x: torch.Tensor, amaxes: torch.Tensor, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix by given amaxes, which are not reduced over ranks again.

        Raises:
            TypeError: `quantize` would raise it, or `amaxes` is not fp32.
            ValueError: `quantize` would raise it, `amaxes` has another number of elements, or the
                amaxes of the format are not those of parts of the input.
        """
        x = self._read_as_it_is(x)
        amax = amaxes[:1]
        block_amaxes = by_block(amaxes[1:], x, self._blocks)
        sides = zip(("rowwise", "columnwise"), checked_usage(usage), strict=True)
        operands = {
            side: PackedOperand(x, amax, self._kind, None, transposed=side == "columnwise")
            for side, needed in sides
            if needed
        }
        self._fill(x, list(operands.values()), block_amaxes)
        return QuantizedTensor(
            self.name,
            (x.shape[0], x.shape[1]),
            {side: operand.finished() for side, operand in operands.items()},
        )

    @property
    def _kind(self) -> ScaleKind:
        if self.scaling == "torchao":
            return "nvfp4_torchao"
        return "nvfp4_256" if self.scale_maximum == 256 else "nvfp4"

    @property
    def _blocks(self) -> tuple[Block, ...]:
        return (
            ((NVFP4_BLOCK, NVFP4_BLOCK),)
            if self.two_dimensional
            else ((1, NVFP4_BLOCK), (NVFP4_BLOCK, 1))
        )

    def _read_as_it_is(self, x: torch.Tensor) -> torch.Tensor:
        if self.hadamard or self.stochastic or self.row_scaled or self.four_over_six:
            raise ValueError(
                expected_but_got(
                    "a format whose scales follow from amaxes of the tensor and its blocks, "
                    "without Hadamard transform, stochastic rounding, row scales or 4over6,",
                    f"{self.name} (Nvfp4)",
                    "quantize the whole matrix",
                )
            )
        return checked_matrix(x, multiple=NVFP4_BLOCK)

    def _amax(self, x: torch.Tensor, *, transposed: bool) -> torch.Tensor:
        if self.row_scaled:
            return row_amaxes(x.t() if transposed else x)
        amax = self._own_amax(x)
        return amax if self.reduce_amax is None else self.reduce_amax(amax)

    def _own_amax(self, x: torch.Tensor) -> torch.Tensor:
        return tensor_amax(x, keep_nan=self.scaling == "torchao")

    def _fill(
        self,
        source: torch.Tensor,
        operands: list[PackedOperand],
        block_amaxes: Mapping[Block, torch.Tensor] | None = None,
    ) -> None:
        scaling_of = nvfp4_scaling_torchao if self.scaling == "torchao" else nvfp4_scaling
        for tile in tiles(source, (NVFP4_BLOCK, NVFP4_BLOCK), block_amaxes):
            codes = scale = None
            for operand in operands:
                block = (NVFP4_BLOCK, NVFP4_BLOCK) if self.two_dimensional else operand.block
                if self.four_over_six:
                    codes, scale = quantized_with_less_error(
                        tile,
                        operand,
                        block,
                        mode=self.error,
                        scale_maximum=self.scale_maximum,
                        scaled_error=self.scaled_error,
                    )
                elif codes is None or not self.two_dimensional:
                    scale, multiplier = scaling_of(operand.amax_of(tile))(tile.amax(block))
                    codes = operand.codes(tile, multiplier, block)
                assert scale is not None
                operand.store(tile, codes, scale)


FORMATS: Makers = {
    "nvfp4_1d": Nvfp4,
    "nvfp4_1d_sr": partial(Nvfp4, stochastic=True),
    "nvfp4_1d_rht": partial(Nvfp4, hadamard=True),
    "nvfp4_1d_rht_sr": partial(Nvfp4, hadamard=True, stochastic=True),
    "nvfp4_1d_torchao": partial(Nvfp4, scaling="torchao"),
    "nvfp4_1d_row": partial(Nvfp4, row_scaled=True),
    "nvfp4_1d_4over6": partial(Nvfp4, four_over_six=True),
    "nvfp4_1d_row_4over6": partial(Nvfp4, row_scaled=True, four_over_six=True),
    "nvfp4_2d": partial(Nvfp4, two_dimensional=True),
    "nvfp4_2d_4over6": partial(Nvfp4, two_dimensional=True, four_over_six=True),
}
