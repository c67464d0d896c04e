"""What is around Transformer Engine's kernels: how their storage is read, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import engine_stand_in
import golden_vectors as golden
import pytest
import torch
from torch.nn import functional as F

from pytest_precision import formats
from pytest_precision.formats import DelayedScaling, Operand
from pytest_precision.formats.elements import E4M3
from pytest_precision.formats.native import Native
from pytest_precision.formats.native_operands import kernel_operands, valid
from pytest_precision.formats.per_tensor import CurrentScaling
from pytest_precision.modules.padding import padded_shape
from pytest_precision.modules.slots import Quantizers

STORED = {
    "fp8_block_1x128_e4m3_pow2": {"rowwise": (1, 4), "columnwise": (1, 4)},
    "fp8_block_128x128_e5m2_pow2": {"rowwise": (1, 4), "columnwise": (1, 4)},
    "mxfp8_e4m3": {"rowwise": (128, 4), "columnwise": (4, 128)},
    "nvfp4_1d": {"rowwise": (128, 4), "columnwise": (128, 4)},
    "nvfp4_2d": {"rowwise": (128, 4), "columnwise": (128, 4)},
}
"""What rows and columns of stored scales are multiples of, as the kernels' allocators have it."""

NATIVE = [name for name in engine_stand_in.quantized() if not name.endswith("sr")]


@pytest.mark.parametrize("release", [(2, 8), (2, 20)])
def test_quantizers_are_asked_in_their_own_words(
    monkeypatch: pytest.MonkeyPatch, release: tuple[int, int]
) -> None:
    """The constructors know all keywords, each means what it should, and storage is read back."""
    engine_stand_in.install(monkeypatch, release)
    x = torch.randn(144, 272, generator=torch.Generator().manual_seed(0)).bfloat16()
    for name in NATIVE:
        native, emulated = (formats.by_name(name) for _ in range(2))
        if name.startswith("mxfp8") and name.endswith("2d") and release < (2, 19):
            with pytest.raises(TypeError, match="with_2d_quantization"):
                kernel_operands(native, x)
            continue
        made, expected = kernel_operands(native, x), emulated.quantize(x).operands
        for side, operand in expected.items():
            assert made[side].storage == operand.storage, (name, side)
            assert golden.differing_bytes(made[side].data, operand.data) == 0, (name, side)
            assert golden.differing_bytes(made[side].scale, operand.scale) == 0, (name, side)
            assert (made[side].amax is None) == (operand.amax is None), (name, side)
            if operand.amax is not None:
                assert golden.differing_bytes(made[side].amax, operand.amax) == 0, (name, side)
        if isinstance(native, DelayedScaling) and isinstance(emulated, DelayedScaling):
            assert torch.equal(native.history, emulated.history), name


def test_epsilon_and_scale_reach_the_quantizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have defaults there, which a forgotten one would fall back to."""
    engine_stand_in.install(monkeypatch, (2, 20))
    x = torch.full((128, 128), 0.5).bfloat16()
    made = [
        formats.by_name(name, epsilon=7.0)
        for name in ("fp8_current_e4m3", "fp8_block_1x128_e4m3_pow2")
    ]
    slot = formats.by_name("fp8_delayed")
    assert isinstance(slot, DelayedScaling)
    slot.scale.fill_(8.0)
    for format in (*made, slot):
        native = kernel_operands(format, x)["rowwise"]
        assert torch.equal(native.data, format.quantize(x).rowwise.data)
        assert torch.equal(native.scale, format.quantize(x).rowwise.scale)


@pytest.mark.parametrize("name", ["nvfp4_1d_sr", "nvfp4_1d_rht_sr"])
def test_stochastic_rounding_is_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Scales are those of rounding to nearest, codes are drawn."""
    engine_stand_in.install(monkeypatch, (2, 8))
    x = torch.randn(144, 272, generator=torch.Generator().manual_seed(0)).bfloat16()
    drawn = kernel_operands(formats.by_name(name), x)
    nearest = formats.by_name(name.removesuffix("_sr")).quantize(x).operands
    for side, operand in nearest.items():
        assert golden.differing_bytes(drawn[side].scale, operand.scale) == 0
        assert golden.differing_bytes(drawn[side].data, operand.data) > 0


@pytest.mark.parametrize("side", ["rowwise", "columnwise"])
def test_padding_of_scales_is_left_out(side: str) -> None:
    """Nothing of the uninitialised padding is read, and transposed scales are turned back."""
    x = torch.randn(144, 272, generator=torch.Generator().manual_seed(0)).bfloat16()
    for name, sides in STORED.items():
        made: Operand = getattr(formats.by_name(name).quantize(x), side)
        scale = made.scale.t() if "1x128" in name else made.scale
        down, across = sides[side]
        stored = F.pad(scale, (0, -scale.shape[1] % across, 0, -scale.shape[0] % down), value=171)
        read = valid(made.data, stored, made.amax, made.storage, (144, 272))
        assert golden.differing_bytes(read.scale, made.scale) == 0, name
        assert golden.differing_bytes(read.data, made.data) == 0, name
        assert read.scale.is_contiguous(), name


@pytest.mark.parametrize("side", ["rowwise", "columnwise"])
def test_a_padded_matrix_is_cut_down(side: str) -> None:
    """MXFP8 kernels take whole blocks; what is left of zeros behind a matrix is the matrix."""
    x = torch.randn(33, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    made: Operand = getattr(formats.by_name("mxfp8_e4m3").quantize(x), side)
    padded: Operand = getattr(
        formats.by_name("mxfp8_e4m3").quantize(F.pad(x, (0, 14, 0, 31))), side
    )
    read = valid(padded.data, padded.scale, None, padded.storage, (33, 50))
    assert read.storage == made.storage
    assert golden.differing_bytes(read.data, made.data) == 0
    assert golden.differing_bytes(read.scale, made.scale) == 0


@pytest.mark.parametrize("precision", ["fp8_delayed", "fp8_current", "fp8_block", "mxfp8", "nvfp4"])
def test_every_recipe_has_native_formats(precision: str) -> None:
    """A layer asked for them quantizes all three operands with them, on a GPU, padded as ever."""
    made, plain = (Quantizers(precision, backend=b) for b in ("native", "emulated"))
    for operand in ("input", "weight", "gradient"):
        ours, theirs = getattr(made, operand), getattr(plain, operand)
        with pytest.raises(ValueError, match="expected x on a GPU"):
            ours.quantize(torch.ones(16, 16).bfloat16())
        assert ours.name == theirs.name
        assert padded_shape(ours, (33, 50)) == padded_shape(theirs, (33, 50))


def test_only_emulated_or_native() -> None:
    """Somebody has decided before a layer is made."""
    with pytest.raises(ValueError, match=r"emulated or native but got backend='auto' \(str\); "):
        Quantizers("mxfp8", backend="auto")


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3_floor", "nvfp4_1d_torchao", "nvfp4_1d_row", "nvfp4_2d_4over6"]
)
def test_what_its_quantizers_lack_is_refused(name: str) -> None:
    """It would quietly be another format."""
    with pytest.raises(ValueError, match=rf"but got {name} with \w+='?\w+'? \(\w+\); emulate it"):
        Native(formats.by_name(name))


def test_a_field_that_no_quantizer_is_told_keeps_its_default() -> None:
    """A format that gets a field is emulated where the field is set, until a quantizer knows it."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Clipped(CurrentScaling):
        clip: float = 0.0

    with pytest.raises(ValueError, match=r"but got clipped with clip=0\.5 \(float\); emulate it"):
        Native(Clipped(name="clipped", element=E4M3, clip=0.5))
    assert Native(Clipped(name="clipped", element=E4M3)).name == "clipped"


def test_what_cannot_be_quantized_is_refused() -> None:
    """A matrix that is not on a GPU, of a wrong size or dtype, or with bits for a seed."""
    x = torch.ones(16, 16).bfloat16()
    with pytest.raises(ValueError, match=r"expected x on a GPU but got x\.device=cpu"):
        Native(formats.by_name("mxfp8_e4m3")).quantize(x)
    with pytest.raises(ValueError, match=r"expected a matrix with elements but .*\(0, 16\)"):
        Native(formats.by_name("mxfp8_e4m3")).quantize(x[:0])
    with pytest.raises(ValueError, match="multiples of 16"):
        Native(formats.by_name("nvfp4_1d")).quantize(x[:15])
    with pytest.raises(TypeError, match=r"expected x of dtype torch\.bfloat16"):
        Native(formats.by_name("nvfp4_1d_rht")).quantize(x.float())
    with pytest.raises(TypeError, match=r"expected a seed for nvfp4_1d_rht_sr but .* \(tuple\)"):
        Native(formats.by_name("nvfp4_1d_rht_sr")).quantize(x, (x, x))
    with pytest.raises(TypeError, match="rounds to nearest"):
        Native(formats.by_name("nvfp4_2d")).quantize(x, 3)
