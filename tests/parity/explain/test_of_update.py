"""What a step made of a tensor: nothing, a part of its update, or a multiple of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_precision.parity.explain.history import of_update


def noise(seed: int, size: int = 64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


BEFORE, UPDATE = noise(1), noise(2) / 8
AFTER = BEFORE + UPDATE


def first_16(changed: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([changed[:16], rest[16:]])


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (BEFORE, "not updated"),
        (first_16(BEFORE, AFTER), "not updated in the first 16 of 64 elements"),
        (first_16(AFTER, BEFORE), "not updated in the last 48 of 64 elements"),
        (BEFORE - UPDATE, "moved the other way"),
        (BEFORE + 2 * UPDATE, "moved by 2 times the reference's update"),
        (BEFORE - 3 * UPDATE, "moved by -3 times the reference's update"),
        (BEFORE + UPDATE / 4, "moved by 0.25 times the reference's update"),
        (BEFORE + UPDATE * 1.02, "moved by 1.02 times the reference's update"),
        (BEFORE + UPDATE * 1.0005, "moved by 1.0005 times the reference's update"),
    ],
)
def test_what_a_step_made_of_a_tensor(candidate: Tensor, words: str) -> None:
    """No update, a part of one, or a multiple, whatever the tensor was before."""
    signature = of_update(candidate, AFTER, BEFORE)
    assert signature is not None
    assert (signature.error, signature.words) == (
        "not updated" if words.startswith("not") else "update",
        words,
    )


SCATTERED = torch.where(torch.arange(64) % 7 == 0, BEFORE, AFTER)


@pytest.mark.parametrize(
    "candidate",
    [
        BEFORE + 40 * UPDATE,
        BEFORE + UPDATE * (1 + 1e-7 * noise(3)),
        BEFORE + noise(3) / 8,
        SCATTERED,
        torch.cat([BEFORE[:1], AFTER[1:]]),
        AFTER.where(AFTER > 0, torch.nan),
        BEFORE + first_16(2 * UPDATE, UPDATE),
    ],
    ids=["far", "rounding", "another update", "scattered", "one", "not finite", "a part doubled"],
)
def test_what_is_no_multiple_of_an_update_is_none(candidate: Tensor) -> None:
    """A few elements that are as before may be so by chance, and far away is something else."""
    assert of_update(candidate, AFTER, BEFORE) is None


@pytest.mark.parametrize(
    ("candidate", "reference", "before", "words"),
    [
        (3, 2, 1, "moved by 2 times the reference's update"),
        (0, 2, 1, "moved the other way"),
        (1, 2, 1, "not updated"),
        (1.75, 1.5, 1.0, None),
        (5.0, 5.0 + 2**-20, 1.0, None),
        (1.5, 1.0, 1.0, None),
    ],
    ids=["twice", "back", "stands", "no whole multiple", "as near as rounding", "no update"],
)
def test_a_number_moves_by_whole_multiples_alone(
    candidate: float, reference: float, before: float, words: str | None
) -> None:
    """Three numbers always have a ratio of two ways."""
    signature = of_update(*(torch.tensor(number) for number in (candidate, reference, before)))
    assert (signature and signature.words) == words


@pytest.mark.parametrize("size", [1e-1, 1e-4])
def test_a_small_update_has_the_rounding_of_its_storage(size: float) -> None:
    """A weight moves in steps of its own dtype, so that less is left of a small update."""
    dtype = torch.bfloat16 if size > 1e-2 else torch.float32
    before = noise(1, 512).to(dtype)
    sides = ((before.double() + n * size * noise(2, 512)).to(dtype) for n in (2, 1))
    signature = of_update(*sides, before)
    assert signature is not None
    assert signature.words == "moved by 2 times the reference's update"


def test_bytes_are_codes_and_move_by_no_multiple() -> None:
    """Not even an fp8 weight that stands still, since most of them do."""
    sides = [side.to(torch.float8_e4m3fn) for side in (BEFORE, AFTER, BEFORE)]
    assert of_update(*sides) is None
    assert of_update(*(side.view(torch.uint8) for side in sides)) is None
