"""Format: what a format does unless it says otherwise, and which of them say what."""

from __future__ import annotations

import engine_stand_in
import pytest
import torch

from pytest_precision import formats
from pytest_precision.formats.blockwise import BlockScaling
from pytest_precision.formats.native import Native
from pytest_precision.formats.scaling import FP32_MAXIMUM
from pytest_precision.modules.rng import RoundingRng

SHAPE, CPU = (16, 32), torch.device("cpu")


class Doubled(formats.Format):
    """A format of a user: it has a name, and quantizes."""

    name = "doubled"

    def quantize(
        self, x: torch.Tensor, random_bits: object = None, *, usage: str = "both"
    ) -> formats.QuantizedTensor:
        """As fp8 of twice the matrix."""
        return formats.by_name("fp8_current_e4m3").quantize(2 * x, random_bits)


def test_a_format_is_an_ordinary_one_unless_it_says_otherwise() -> None:
    """Any size, rounding to nearest, no state."""
    format = Doubled()
    assert (format.block_multiple, format.stochastic, format.has_state) == (1, False, False)
    assert format.random_bits(RoundingRng("mine"), SHAPE, CPU) is None


def test_masters_are_cast_by_formats_that_reduce_amaxes() -> None:
    """Any other is refused when it is asked, with what to do."""
    with pytest.raises(
        TypeError, match=r"reduced over ranks but got doubled \(Doubled\); derive it"
    ):
        Doubled().of_masters()


def test_a_class_that_no_kernel_quantizes_is_refused() -> None:
    """By its name."""
    with pytest.raises(ValueError, match=r"but got doubled \(Doubled\); emulate it"):
        Native(Doubled())


@pytest.mark.parametrize("name", engine_stand_in.quantized())
def test_the_native_one_differs_in_its_bits_alone(name: str) -> None:
    """It pads, draws and keeps a state where the emulated one does; the kernels take a seed."""
    format = formats.by_name(name)
    native, rng = Native(format), RoundingRng("mine")
    assert native.block_multiple == format.block_multiple == (16 if "nvfp4" in name else 1)
    assert native.has_state is format.has_state is ("delayed" in name)
    assert native.stochastic is format.stochastic is name.endswith("_sr")
    assert native.random_bits(rng, SHAPE, CPU) == (rng.seed if format.stochastic else None)
    bits = format.random_bits(rng, SHAPE, CPU)
    assert [one.shape for one in bits or ()] == [(16, 32), (32, 16)][: 2 * format.stochastic]


def test_masters_fall_back_to_the_largest_fp32() -> None:
    """As the kernel that casts them, which knows no other dtype; on either backend."""
    format = formats.by_name("fp8_block_128x128_e4m3_pow2")
    for made in (format.of_masters(), Native(format).of_masters()):
        assert isinstance(made, BlockScaling)
        assert (made.name, made.if_infinite) == (format.name, FP32_MAXIMUM)
