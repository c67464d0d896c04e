"""Parts of a matrix, cast by amaxes that were reduced over them, are parts of the cast matrix."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surroundings import foreign_at_night

from pytest_precision import formats

WHOLE = [name for name in formats.names() if name.endswith(("_sr", "_rht", "_row", "_4over6"))]
"""Formats whose amaxes are not those of parts of the input."""

REDUCIBLE = [name for name in formats.names() if name not in WHOLE]
SHAPE = (144, 160)
"""Several blocks of every size; no whole number of the largest ones."""

few = settings(max_examples=5)


def sample(seed: int) -> torch.Tensor:
    """bf16 numbers of many magnitudes, so that blocks have different scales."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.exp2(torch.randint(-9, 9, SHAPE, generator=generator))
    return (torch.randn(SHAPE, generator=generator) * spread).bfloat16()


def parts(x: torch.Tensor, cuts: list[int]) -> list[torch.Tensor]:
    """What each rank has: its elements, and 0 for those of others."""
    bounds = [0, *sorted(cuts), x.numel()]
    held = [torch.zeros_like(x) for _ in bounds[1:]]
    for part, start, stop in zip(held, bounds, bounds[1:], strict=False):
        part.view(-1)[start:stop] = x.view(-1)[start:stop]
    return held


def reducible(name: str) -> formats.Reducible:
    """A format to which nothing happened before."""
    return formats.by_name(name)  # type: ignore[return-value]


@foreign_at_night
@few
@given(seed=st.integers(0, 99), cuts=st.lists(st.integers(1, 144 * 160 - 1), max_size=3))
def test_parts_are_cast_as_the_whole(seed: int, cuts: list[int]) -> None:
    """Wherever rows and blocks are cut: bytes add up, and scales and amaxes are the same on all."""
    x = sample(seed)
    held = parts(x, cuts)
    for name in REDUCIBLE:
        whole = reducible(name).quantize(x)
        amaxes = reduce(torch.maximum, [reducible(name).amaxes(part) for part in held])
        made = [reducible(name).quantize_with(part, amaxes) for part in held]
        for side, expected in whole.operands.items():
            operands = [one.operands[side] for one in made]
            summed = torch.stack([operand.unpacked() for operand in operands]).sum(0)
            assert torch.equal(summed, expected.unpacked()), name
            assert all(torch.equal(operand.scale, expected.scale) for operand in operands), name
            if expected.amax is not None:
                assert all(torch.equal(operand.amax, expected.amax) for operand in operands), name


def test_an_amax_that_was_not_reduced_shows() -> None:
    """Parts that are cast by their own amaxes have other scales than the whole."""
    part = parts(sample(0), [72 * 160])[0]
    for name in (name for name in REDUCIBLE if "delayed" not in name):
        whole = reducible(name).quantize(sample(0)).rowwise
        own = reducible(name)
        made = own.quantize_with(part, own.amaxes(part)).rowwise
        assert not torch.equal(made.scale, whole.scale), name


def test_delayed_scaling_remembers_the_amax_that_it_is_given() -> None:
    """And casts by the scale that it had."""
    format = reducible("fp8_delayed_e4m3")
    given_amax = torch.tensor([448.0 * 4])
    assert bool((format.quantize_with(sample(0), given_amax).rowwise.scale == 1).all())
    format.update()  # type: ignore[attr-defined]
    assert format.scale.item() == 0.25  # type: ignore[attr-defined]


def test_a_nan_is_cast_as_ever() -> None:
    """Whether the format ignores it in amaxes, as the kernels do, or keeps it, as torchao does."""
    x = sample(0)
    x[3, 5] = torch.nan
    for name in REDUCIBLE:
        whole, format = reducible(name).quantize(x), reducible(name)
        made = format.quantize_with(x, format.amaxes(x))
        assert torch.equal(made.rowwise.data, whole.rowwise.data), name
        assert torch.equal(made.columnwise.data, whole.columnwise.data), name
        assert torch.equal(made.rowwise.scale, whole.rowwise.scale), name


def test_what_has_no_parts_is_refused() -> None:
    """A transform or a row mixes elements of several ranks; others need a whole matrix."""
    words = "a format whose scales follow from amaxes of the tensor"
    for name in WHOLE:
        with pytest.raises(ValueError, match=words):
            reducible(name).amaxes(sample(0))


@pytest.mark.parametrize("name", ["fp8_current_e4m3", "fp8_block_128x128_e4m3_pow2", "nvfp4_2d"])
def test_amaxes_of_another_matrix_are_refused(name: str) -> None:
    """Their number and dtype say so."""
    amaxes = reducible(name).amaxes(sample(0))
    with pytest.raises(ValueError, match=r"expected \d+ amaxes for a matrix of shape \(144, 160\)"):
        reducible(name).quantize_with(sample(0), torch.cat((amaxes, amaxes)))
    with pytest.raises(TypeError, match=r"expected amaxes of dtype torch\.float32 but got"):
        reducible(name).quantize_with(sample(0), amaxes.double())
