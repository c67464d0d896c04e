"""Row-scaled NVFP4 and 4over6: what holds beyond the vectors of the reference."""

from __future__ import annotations

import pytest
import torch

from pytest_precision import formats
from pytest_precision.formats import tiles
from pytest_precision.formats.nvfp4 import Nvfp4


@pytest.mark.parametrize("name", ["nvfp4_1d_row", "nvfp4_1d_row_4over6"])
def test_each_row_has_its_own_amax(name: str) -> None:
    """A row is quantized as it would be in a matrix of its own, and so is a column."""
    x = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    x = x * torch.logspace(-3, 3, 32)[:, None] * torch.logspace(-2, 2, 48)
    alone = formats.by_name(name.replace("_row", ""))
    quantized = formats.by_name(name).quantize(x)
    assert torch.equal(quantized.rowwise.amax, x.abs().amax(1))
    assert torch.equal(quantized.columnwise.amax, x.abs().amax(0))
    for row in (0, 1, 15, 16, 31):
        one = alone.quantize(x[row].expand(16, 48).contiguous()).rowwise
        assert torch.equal(quantized.rowwise.data[row], one.data[0])
        assert torch.equal(quantized.dequantize()[row], one.dequantize()[0])
    for column in (0, 1, 16, 31, 47):
        one = alone.quantize(x[:, column].expand(16, 32).contiguous()).rowwise
        assert torch.equal(quantized.columnwise.data[column], one.data[0])
        assert torch.equal(quantized.columnwise.dequantize()[:, column], one.dequantize()[0])


@pytest.mark.parametrize("name", ["nvfp4_1d_row", "nvfp4_1d_row_4over6", "nvfp4_2d_4over6"])
def test_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A matrix of many tiles is quantized and read back as in one tile."""
    x = torch.randn(160, 272, generator=torch.Generator().manual_seed(0))
    whole = formats.by_name(name).quantize(x)
    values = whole.dequantize(), whole.columnwise.dequantize()
    monkeypatch.setattr(tiles, "CPU_ELEMENTS", 1)
    monkeypatch.setattr(tiles, "TILE_WIDTH", 128)
    assert len(list(tiles.tile_spans(160, 272, torch.device("cpu")))) == 9
    parts = formats.by_name(name).quantize(x)
    for side in ("rowwise", "columnwise"):
        for field in ("data", "scale", "amax"):
            ours, theirs = (getattr(made.operands[side], field) for made in (parts, whole))
            assert torch.equal(ours, theirs)
    assert torch.equal(parts.dequantize(), values[0])
    assert torch.equal(parts.columnwise.dequantize(), values[1])


@pytest.mark.parametrize("options", [{}, {"scale_maximum": 256}, {"error": "MSE"}])
@pytest.mark.parametrize("name", ["nvfp4_1d_4over6", "nvfp4_2d_4over6"])
def test_four_over_six_has_the_smaller_error(name: str, options: dict[str, object]) -> None:
    """No block is further from its elements than with the usual scale, and some are nearer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 64, generator=generator)
    # Elements near 5/6 of the largest are those that the other scale suits, but in a large block.
    x[:48, :32] = 0.2 + 0.01 * torch.randn(48, 32, generator=generator)
    chosen = formats.by_name(name, **options).quantize(x)
    power = 2 if options.get("error") == "MSE" else 1
    side = 16 if name == "nvfp4_2d_4over6" else 1

    def errors(made: torch.Tensor) -> torch.Tensor:
        apart = (made.double() - x.double()).abs() ** power
        return apart.view(64 // side, side, 4, 16).sum((1, 3))

    usual = formats.by_name(name.removesuffix("_4over6")).quantize(x)
    if not options.get("scale_maximum"):
        assert (errors(chosen.dequantize()) <= errors(usual.dequantize()) * (1 + 1e-6)).all()
    total = errors(usual.dequantize()).sum()
    assert errors(chosen.dequantize()).sum() < total


def test_a_block_of_fives_and_a_six() -> None:
    """5 becomes 4, or 4.5 with a scale that makes 4 of 6; with 448 there is no room for it."""
    x = torch.zeros(16, 16)
    x[:, 0], x[:, 1:6] = 6.0, 5.0
    for scale_maximum, first, second in ((448, 7, 6), (256, 6, 5)):
        format = formats.by_name("nvfp4_1d_4over6", scale_maximum=scale_maximum)
        operand = format.quantize(x).rowwise
        assert operand.data[0, 0] == first | second << 4
        assert float(operand.dequantize()[0, 1]) == (4.0 if second == 6 else 4.5)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"row_scaled": True, "two_dimensional": True}, "row_scaled without hadamard"),
        ({"row_scaled": True, "reduce_amax": abs}, "row_scaled without hadamard"),
        ({"four_over_six": True, "hadamard": True}, "four_over_six without hadamard"),
        ({"four_over_six": True, "stochastic": True}, "four_over_six without hadamard"),
        ({"scale_maximum": 256}, "options of 4over6 with four_over_six=True only"),
    ],
)
def test_what_the_kernels_do_not_combine_is_refused(
    fields: dict[str, object], expected: str
) -> None:
    """It would be a format that nobody computes."""
    with pytest.raises(ValueError, match=f"expected {expected}"):
        Nvfp4(name="mine", **fields)
