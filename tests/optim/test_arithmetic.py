"""fp32 arithmetic with the same bits on every machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_precision.optim.kernel import fp32, sqrt


def test_the_square_root_of_fp32_is_correctly_rounded() -> None:
    """As numpy has it, which uses the processor's own square root, which IEEE 754 defines."""
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 1e-4
    subnormal = torch.arange(1, 1000, dtype=torch.int32).view(torch.float32)
    for operand in (values, subnormal):
        assert np.array_equal(sqrt(operand).numpy(), np.sqrt(operand.numpy()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_square_root_keeps_the_dtype_and_the_operand(dtype: torch.dtype) -> None:
    """A moment stays what it is."""
    values = torch.tensor([4.0, 9.0], dtype=dtype)
    assert torch.equal(sqrt(values), torch.tensor([2.0, 3.0], dtype=dtype))
    assert values.tolist() == [4.0, 9.0]


def test_the_square_root_of_every_bf16_number_is_correctly_rounded() -> None:
    """All 32640 that are finite and not negative."""
    values = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    assert torch.equal(sqrt(values), values.double().sqrt().bfloat16())


def test_a_scalar_is_rounded_to_fp32() -> None:
    """Among the traps: 1 - beta2 is not 0.001, and not the fp32 number next to it."""
    rest = fp32(1 - fp32(0.999))
    assert rest == 0.00099998712539672852
    assert rest != fp32(0.001)
