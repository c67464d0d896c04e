"""Formats that Transformer Engine's kernels quantize on a GPU, instead of this package.

Their results are cut down to the valid region, so that bytes, scales and amaxes equal those of the
emulation bit for bit, in the releases that `PRECISIONS` names, and unless the variable
NVTE_USE_FAST_MATH is set. This module was written from the sources of Transformer Engine 2.8 to
2.20 and was never run with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.formats.format import Format, RandomSource, Reducible
from pytest_precision.formats.inputs import Usage, checked_usage, refuse_random_bits
from pytest_precision.formats.native_operands import expect_quantizer, kernel_operands
from pytest_precision.formats.quantized import QuantizedTensor


class Native(Format):
    """A format that is quantized by Transformer Engine's kernels.

    Attributes:
        name: the name that `by_name` takes.
        emulated: the same format as this package computes it; it also holds the state, if any.
    """

    def __init__(self, emulated: Format) -> None:
        """Wrap a format of this package, so that Transformer Engine's kernels quantize instead.

        Raises:
            ValueError: Transformer Engine's quantizers do not have the format.
        """
        expect_quantizer(emulated)
        self.emulated = emulated
        self.name = emulated.name

    @property
    def block_multiple(self) -> int:
        """The number by which rows and columns must be divisible, as in the emulated format."""
        return self.emulated.block_multiple

    @property
    def stochastic(self) -> bool:
        """Whether elements are rounded stochastically, as in the emulated format."""
        return self.emulated.stochastic

    @property
    def has_state(self) -> bool:
        """Whether a cast depends on earlier casts, as in the emulated format."""
        return self.emulated.has_state

    def random_bits(
        self, source: RandomSource, shape: tuple[int, int], device: torch.device
    ) -> int | None:
        """Return a seed from which the kernels draw bits; None unless rounding is stochastic."""
        return source.seed if self.stochastic else None

    def of_masters(self) -> Reducible:
        """Return the format that casts master weights, which is emulated, not run by kernels."""
        return self.emulated.of_masters()

    def update(self) -> None:
        """Advance the state of delayed scaling by one step; this needs no kernel."""
        self.emulated.update()

    def quantize(
        self, x: torch.Tensor, random_bits: Any = None, *, usage: Usage = "both"
    ) -> QuantizedTensor:
        """Quantize a matrix on a GPU by Transformer Engine's kernels.

        Args:
            x: [rows, columns] on a GPU that supports the format, not empty; multiples of 16 for
                NVFP4.
            random_bits: if the format is stochastic, a seed for the GPU's generator, whose state is
                restored afterwards; None continues with the generator as it is. The kernels use the
                generator's bits in their own order, so no seed corresponds to given random bits of
                the emulation.
            usage: which operands to return.

        Raises:
            TypeError: `x` is not a tensor of fp32, bf16 or fp16 (of bf16 for a Hadamard transform),
                `random_bits` is not a seed, or a seed is given and the format rounds to nearest; or
                Transformer Engine is older than 2.19 and the format is MXFP8 in two dimensions.
            ValueError: `x` is not a matrix, not on a GPU, empty or of an unsuitable size, or
                `usage` is unknown.
            ImportError: Transformer Engine is not installed.
        """
        format = self.emulated
        x = format.checked(x)
        checked_usage(usage)
        if not self.stochastic:
            refuse_random_bits(random_bits, self.name)
        elif random_bits is not None and not isinstance(random_bits, int):
            raise TypeError(
                expected_but_got(
                    f"a seed for {self.name}",
                    f"random_bits=... ({type(random_bits).__name__})",
                    "give an int, or emulate the format",
                )
            )
        if x.numel() == 0:  # the kernels return before they write a scale
            raise ValueError(
                expected_but_got(
                    "a matrix with elements",
                    f"x.shape={tuple(x.shape)} (Size)",
                    "emulate the format, or leave the matrix out",
                )
            )
        if x.device.type != "cuda":
            raise ValueError(
                expected_but_got(
                    "x on a GPU",
                    f"x.device={x.device} (device)",
                    "move x to a GPU, or emulate the format",
                )
            )
        with torch.no_grad(), _on(x.device, random_bits):
            operands = kernel_operands(format, x)
        returned_operands = {
            side: operand for side, operand in operands.items() if usage in ("both", side)
        }
        return QuantizedTensor(self.name, (x.shape[0], x.shape[1]), returned_operands)


@contextmanager
def _on(device: torch.device, seed: int | None) -> Iterator[None]:
    """Select a GPU within a `with` block, and seed its generator unless `seed` is None."""
    with torch.cuda.device(device), torch.random.fork_rng([device], enabled=seed is not None):
        if seed is not None:
            torch.cuda.manual_seed(seed)
        yield
