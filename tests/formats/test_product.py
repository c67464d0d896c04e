"""Products of quantized matrices: what is summed, in which order, and what is multiplied last."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pytest_precision import formats
from pytest_precision.formats import Operand
from pytest_precision.formats.product import matmul

NVFP4 = ("nvfp4_1d", "nvfp4_2d", "nvfp4_1d_4over6")


def drawn(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32).bfloat16()


def block_by_block(left: Operand, right: Operand) -> Tensor:
    """Return left @ right^T as Transformer Engine's own reference says that the hardware sums."""
    empty = torch.empty(64, 96, dtype=torch.float32)
    codes = [one.storage.element.decode(one.data, empty.clone()) for one in (left, right)]
    scales = [one.scale.view(torch.float8_e4m3fn).float() for one in (left, right)]
    sums = torch.zeros(64, 64, dtype=torch.float32)
    for block in range(96 // 16):
        here = slice(block * 16, block * 16 + 16)
        inner = codes[0][:, here].double() @ codes[1][:, here].double().t()
        sums += torch.outer(scales[0][:, block], scales[1][:, block]) * inner.float()
    assert left.amax is not None
    assert right.amax is not None
    return sums * (left.amax * right.amax * (1.0 / left.amax.new_tensor(left.range * right.range)))


@pytest.mark.parametrize("name", NVFP4)
def test_the_scales_of_the_tensors_come_last(name: str) -> None:
    """As cuBLAS multiplies by `alpha`; the sums of blocks are added one after the other."""
    made = [formats.by_name(name).quantize(drawn(64, 96, seed=seed)).rowwise for seed in (0, 1)]
    made = [rows_of_blocks(one) for one in made]
    product = matmul(*made, turn_right=True)
    assert torch.equal(product, block_by_block(*made))
    assert not torch.equal(product, made[0].dequantize() @ made[1].dequantize().t())


def rows_of_blocks(operand: Operand) -> Operand:
    """Return an operand whose scales stand for each row, also where blocks have more rows."""
    assert operand.storage.block is not None
    assert operand.storage.block[1] == 16
    scale = operand.scale.repeat_interleave(operand.storage.block[0], 0)
    storage = formats.by_name("nvfp4_1d").quantize(drawn(64, 96, seed=0)).rowwise.storage
    read = operand.storage.scale
    return replace(operand, scale=scale, storage=replace(storage, scale=read))


@pytest.mark.parametrize("name", ["fp8_current_e4m3", "mxfp8_e4m3", "nvfp4_1d_row"])
def test_other_formats_sum_what_they_stand_for(name: str) -> None:
    """Their scales are parts of each value: of a row, of a block, or of all in fp8."""
    left, right = (formats.by_name(name).quantize(drawn(64, 96, seed=n)).rowwise for n in (0, 1))
    product = matmul(left, right, turn_right=True)
    with torch.autocast("cpu", enabled=False):
        assert torch.equal(product, left.dequantize() @ right.dequantize().t())


def test_one_amax_is_used_where_the_other_operand_has_one_for_each_row() -> None:
    """Row-scaled inputs are multiplied by weights that have one scale."""
    left, right = (
        formats.by_name(name).quantize(drawn(64, 96, seed=0)).rowwise
        for name in ("nvfp4_1d_row", "nvfp4_1d")
    )
    exact = left.dequantize().double() @ right.dequantize().double().t()
    product = matmul(left, right, turn_right=True)
    assert float((product - exact).norm() / exact.norm()) < 2**-22
