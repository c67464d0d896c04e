"""A difference is named by what it looks like, and by nothing where it looks like nothing."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.parity.compare.signature import signature, times

REFERENCE = torch.randn(64, generator=torch.Generator().manual_seed(1))
UNRELATED = torch.randn(64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (UNRELATED, "values"),
        (REFERENCE * 2, "2 times the reference"),
        (REFERENCE / 3, "0.333333 times the reference"),
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


def test_integers_have_no_signature() -> None:
    """Ratios and grids mean nothing for a counter."""
    assert signature(torch.tensor([2]), torch.tensor([1])) == "values"


@pytest.mark.parametrize("ratio", [0.0, -0.0, float("inf")])
def test_a_factor_that_has_no_power_of_two_near_it_is_said(ratio: float) -> None:
    """A whole segment may be 0 on one side."""
    assert times(ratio) == f"{ratio:.6g} times the reference"
