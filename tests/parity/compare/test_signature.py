"""A difference is named by what it looks like, and by nothing where it looks like nothing."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.parity.compare.ratio import unit_of
from pytest_precision.parity.compare.signature import ERRORS, Signature, extreme, form, times

REFERENCE = torch.randn(64, generator=torch.Generator().manual_seed(1))
UNRELATED = torch.randn(64, generator=torch.Generator().manual_seed(2))


def signature(
    candidate: torch.Tensor, reference: torch.Tensor, products: torch.dtype = torch.float32
) -> str:
    """The words for a difference, whose kind must be one that is listed."""
    unit = unit_of(products)
    found = extreme(candidate, reference) or form(candidate, reference, unit)
    assert found.error in ERRORS or found == Signature()
    return found.words


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (UNRELATED, "values"),
        (REFERENCE * 2, "2 times the reference"),
        (REFERENCE / 3, "0.333333 times the reference"),
        (REFERENCE * (1 + 2**-20), "1.00000095 times the reference"),
        (REFERENCE * 2**22, "2^22 times the reference"),
        (REFERENCE / -(2**16), "-2^-16 times the reference"),
        (REFERENCE * 1025, "1025 times the reference"),
        (REFERENCE.bfloat16().float(), "rounded to bfloat16"),
        (
            REFERENCE * torch.tensor([2.0, 1.0]).repeat_interleave(32),
            "2 times the reference, 1 from element 32",
        ),
        (
            REFERENCE * torch.tensor([1.0, 1 + 8 * 2**-23]).repeat_interleave(32),
            "different in the last 32 of 64 elements only",
        ),
        (
            torch.cat([UNRELATED[:16], REFERENCE[16:]]),
            "different in the first 16 of 64 elements only",
        ),
        (
            torch.cat([REFERENCE[:40], UNRELATED[40:]]),
            "different in the last 24 of 64 elements only",
        ),
        (
            torch.cat([REFERENCE[:8], UNRELATED[8:32], REFERENCE[32:]]),
            "different in elements 8 to 31 of 64 only",
        ),
        (torch.zeros(64), "all zero"),
        (REFERENCE.where(REFERENCE > 0, torch.nan), "not finite"),
        (torch.full((64,), torch.nan), "all NaN"),
    ],
    ids=[
        "nothing",
        "doubled",
        "third",
        "near 1",
        "loss scale",
        "unscaled",
        "no power",
        "rounded",
        "edge",
        "rounding alone",
        "first",
        "last",
        "middle",
        "zero",
        "nan",
        "all nan",
    ],
)
def test_what_a_difference_looks_like(candidate: torch.Tensor, name: str) -> None:
    """Scale, rounding, place: each points at another part of the stack."""
    assert signature(candidate, REFERENCE) == name


def test_the_sign_of_zero_is_a_signature() -> None:
    """The bytes differ and no value does."""
    assert signature(torch.tensor([0.0]), torch.tensor([-0.0])) == "sign of zero"


def test_a_power_of_two_is_no_rounding_of_what_is_far_from_it() -> None:
    """All grids have it; only what a rounding can have moved so far looks rounded."""
    assert signature(torch.tensor([1.0]), torch.tensor([1.86e-11])) == "values"


@pytest.mark.parametrize(
    ("ours", "words"),
    [(2.0, "values"), (-0.5, "values"), (1.9921875, "rounded to bfloat16")],
)
def test_a_power_of_two_is_no_rounding_of_what_is_near_it(ours: float, words: str) -> None:
    """A rate of 0.5 was chosen; another number of few bits has them by a rounding."""
    assert signature(torch.tensor([ours]), torch.tensor([ours * 1.0005])) == words


@pytest.mark.parametrize("scale", [1.0, 1e-40, 3e38])
def test_truncation_is_a_rounding(scale: float) -> None:
    """Of whatever size and in whatever direction, by less than a step."""
    reference = torch.rand(64, generator=torch.Generator().manual_seed(3)) * scale
    truncated = (reference.view(torch.int32) & ~0xFFFF).view(torch.float32)
    assert signature(truncated, reference) == "rounded to bfloat16"


@pytest.mark.parametrize(
    ("size", "differ"),
    [(24, range(8, 23)), (64, [*range(8, 20), *range(21, 32)]), (64, [5]), (64, range(1, 64))],
    ids=["small", "with a gap", "one", "all but one"],
)
def test_scattered_rounding_is_no_stretch(size: int, differ: list[int]) -> None:
    """Neighbours in a small tensor, or nearly all of one, differ together by chance, too."""
    candidate = REFERENCE[:size].clone()
    candidate[[*differ]] *= 1 + 2**-20 * torch.rand(len(differ)).add(1)
    assert signature(candidate, REFERENCE[:size]) == "values"


def test_rows_that_nothing_has_read_do_not_end_a_stretch() -> None:
    """Their gradients are 0 on both sides, so that they agree about nothing."""
    candidate = torch.cat([UNRELATED[:40], torch.zeros(24)])
    assert signature(candidate, torch.cat([REFERENCE[:40], torch.zeros(24)])) == "values"


@pytest.mark.parametrize(
    ("candidate", "reference", "words"),
    [
        (torch.tensor([2]), torch.tensor([1]), "2 times the reference"),
        (torch.tensor([6, 12]), torch.tensor([4, 8]), "1.5 times the reference"),
        (torch.tensor([6, 13]), torch.tensor([4, 8]), "values"),
        (torch.tensor([6, 12], dtype=torch.uint8), torch.tensor([4, 8]).byte(), "values"),
    ],
)
def test_integers_have_exact_factors(
    candidate: torch.Tensor, reference: torch.Tensor, words: str
) -> None:
    """A counter that is doubled is; codes in bytes have none."""
    assert signature(candidate, reference) == words


SQUARE = torch.randn(12, 12, generator=torch.Generator().manual_seed(4))
TALL = SQUARE.reshape(24, 6)


@pytest.mark.parametrize(
    ("candidate", "reference", "words"),
    [
        (SQUARE.T.contiguous(), SQUARE, "the reference, transposed"),
        (TALL.T.reshape(24, 6), TALL, "the reference, transposed"),
        (TALL.flip(0), TALL, "the reference's rows in another order"),
        (TALL.roll(1, 1), TALL, "the reference's columns in another order"),
        (REFERENCE.flip(0), REFERENCE, "the reference's values in other places"),
        (TALL.flip(0) * 1.001, TALL, "values"),
        (REFERENCE[:4].flip(0), REFERENCE[:4], "values"),
    ],
    ids=["square", "not square", "rows", "columns", "flat", "other values", "few"],
)
def test_values_in_other_places(
    candidate: torch.Tensor, reference: torch.Tensor, words: str
) -> None:
    """The sorted values are equal bit for bit; which way they were moved is said."""
    assert signature(candidate, reference) == words


def test_sums_of_rounded_values_lie_on_the_grid() -> None:
    """They are no rounding of the exact sum, which is more than a step away."""
    rounded = (REFERENCE.bfloat16() - UNRELATED.bfloat16()).float()
    exact = REFERENCE - UNRELATED
    assert signature(rounded, exact) == "all on the grid of bfloat16"
    assert signature(torch.ones(64), exact) == "values"
    assert signature(rounded, UNRELATED) == "values"


def noisy(tensor: torch.Tensor, size: float) -> torch.Tensor:
    """The tensor with a relative error of `size` in each element."""
    drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5))
    return tensor * (1 + size * drawn)


@pytest.mark.parametrize(
    ("candidate", "products", "words"),
    [
        (noisy(REFERENCE / 3, 2e-7), torch.float32, "0.333 times the reference up to 2e-07"),
        (noisy(REFERENCE / 3, 2e-2), torch.float32, "values"),
        (noisy(REFERENCE * 1.0005, 2e-7), torch.float32, "1.0005 times the reference up to 2e-07"),
        (noisy(REFERENCE * 1.000001, 2e-7), torch.float32, "values"),
        (noisy(REFERENCE / 3, 6e-3), torch.bfloat16, "0.333 times the reference up to 0.007"),
        (noisy(REFERENCE / 3, 7e-2), torch.bfloat16, "values"),
        (noisy(REFERENCE * 1.02, 6e-3), torch.bfloat16, "values"),
    ],
    ids=[
        "fp32",
        "far",
        "near 1",
        "as small as rounding",
        "bf16",
        "far in bf16",
        "as small as bf16's",
    ],
)
def test_a_factor_up_to_rounding(
    candidate: torch.Tensor, products: torch.dtype, words: str
) -> None:
    """What it leaves must be rounding of the products, and small beside what it explains."""
    assert signature(candidate, REFERENCE, products) == words


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (2.0000002, 1.0, "2 times the reference"),
        (0.75 * 3.3, 3.3, "0.75 times the reference"),
        (2**0.5 * 3.3, 3.3, "1.41 times the reference"),
        (-3.3, 3.3, "values"),
        (1.234, 1.0, "values"),
        (1.00001, 1.0, "values"),
        (0.0, 1.0, "values"),
    ],
)
def test_a_single_number_has_a_factor_only_if_it_is_simple(
    ours: float, theirs: float, words: str
) -> None:
    """Two numbers always have a ratio; a norm whose square is doubled is off by a root."""
    assert signature(torch.tensor(ours), torch.tensor(theirs)) == words


@pytest.mark.parametrize("ratio", [0.0, -0.0, float("inf")])
def test_a_factor_that_has_no_power_of_two_near_it_is_said(ratio: float) -> None:
    """A whole segment may be 0 on one side."""
    assert times(ratio) == f"{ratio:.6g} times the reference"
