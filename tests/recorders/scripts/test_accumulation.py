"""A script that accumulates gradients is compared with one that has the batch as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from checked import ParityIn, failed
from torch import nn

from pytest_precision import Cell, norm, script

CELL = Cell(sequence="train3")
SPLIT = [5, 3]
"""Numbers of tokens of the microbatches, which are not equal."""

TOLERANCE = {"default": norm(rel=1e-5)}


@script
def loop(
    cell: Cell,
    record: Callable[..., None],
    split: list[int] | None = None,
    weigh: Callable[[int], float] | None = None,
    see: Sequence[str] = (),
) -> None:
    """Train on batches of 8 tokens, split into microbatches whose losses are means."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(see=[*see]):
        while True:
            for microbatch in torch.randn(8, 3).split(split or [8]):
                loss = model(microbatch).square().mean()
                (
                    loss * (len(microbatch) / 8 if weigh is None else weigh(len(microbatch)))
                ).backward()
            optimizer.step()
            optimizer.zero_grad()


def half(tokens: int) -> float:
    """Weigh each microbatch alike, so that tokens of a smaller one count more."""
    return 0.5


def whole(tokens: int) -> float:
    """Forget to divide."""
    return 1.0


def test_losses_are_compared_by_their_sum_where_a_tolerance_is_given(
    parity_there: ParityIn,
) -> None:
    """What is called backward on adds up to the loss of the batch, and that is said."""
    for sides in ((partial(loop, split=SPLIT), loop), (loop, partial(loop, split=SPLIT))):
        verdict = parity_there(CELL).check(*sides, criterion=TOLERANCE)
        assert verdict.left_out["loss of each microbatch"].endswith(
            "their sum was compared instead"
        )


@pytest.mark.parametrize("weigh", [half, whole])
def test_a_wrong_weight_of_microbatches_is_red(
    parity_there: ParityIn, weigh: Callable[[int], float]
) -> None:
    """The sum of the losses is no longer that of the batch."""
    wrong = partial(loop, split=SPLIT, weigh=weigh)
    verdict = failed(parity_there(CELL), wrong, loop, criterion=TOLERANCE)
    assert verdict.divergence is not None
    assert (verdict.divergence.kind, verdict.divergence.step) == ("loss", 1)
    assert verdict.divergence.name == "microbatches (sum)"


def test_bit_for_bit_their_number_differs(parity_there: ParityIn) -> None:
    """No sum in another order has the same bits, and what to write is said."""
    verdict = failed(parity_there(CELL), partial(loop, split=SPLIT), loop)
    assert "2 microbatches here, 1 in the reference" in verdict.reason
    assert any('{"default": norm(rel=1e-5)}' in line for line in verdict.details)


def test_the_same_number_of_losses_is_compared_one_by_one(parity_there: ParityIn) -> None:
    """A tolerance is asked of each of them."""
    verdict = failed(
        parity_there(CELL),
        partial(loop, split=SPLIT),
        partial(loop, split=SPLIT[::-1]),
        criterion=TOLERANCE,
    )
    assert verdict.divergence is not None
    assert verdict.divergence.name == "microbatch0"


def test_gradients_after_other_numbers_of_microbatches_are_explained(
    parity_there: ParityIn,
) -> None:
    """The first microbatch of several has a part of the gradient."""
    sides = partial(loop, split=SPLIT, see=["grad"]), partial(loop, see=["grad"])
    verdict = failed(parity_there(CELL), *sides, criterion=TOLERANCE)
    assert verdict.divergence is not None
    assert verdict.divergence.kind == "grad"
    words = "step 1 has 2 here, 1 in the reference: reduced_grad, after the last one,"
    assert words in "\n".join(verdict.details)
