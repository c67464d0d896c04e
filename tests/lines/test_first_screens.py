"""The first screen of a failure: what differs first, and below it what made it wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
import torch
import wrong_engines
from marked_lines import marked
from wrong_engines import WORKLOAD, of

from pytest_precision import Cell, Engine, Parity, ParityError, Verdict
from pytest_precision.optim import FusedAdam

ParityIn = Callable[[Cell], Parity]

HERE = Path(wrong_engines.__file__)

TRAINED = Cell(sequence="train2")


def failed(
    parity: Parity,
    kind: type[Engine],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> tuple[Verdict, list[str]]:
    """Return the verdict on an engine beside the right one, and the lines of its failure."""
    sides = (of(one, optimizer=optimizer) for one in (kind, wrong_engines.Right))
    with pytest.raises(ParityError) as failure:
        parity.check(*sides, workload=WORKLOAD)
    return failure.value.verdict, str(failure.value).splitlines()


# CI has the line and the words of a region in `test_regions.py`, without a check around it.
@pytest.mark.nightly
def test_a_compiled_region_is_named_at_its_definition(parity_by: Callable[..., Parity]) -> None:
    """The second line says that it counts as one operation, and how to look inside.

    In this process, which imports the compiler once for all recordings.
    """
    parity = parity_by(TRAINED, ranks="inline")
    verdict, (_, second, *_) = failed(parity, wrong_engines.CompiledProduct)
    culprit = verdict.culprit
    assert culprit is not None, verdict.details
    place = f"{HERE.relative_to(Path.cwd())}:{marked(HERE, 'product')}"
    assert (culprit.operation, culprit.where) == ("compiled.region", place)
    assert f"at {place}: a compiled region, which is counted as one operation," in second
    assert 'backend="aot_eager"' in second


def test_a_counter_that_is_no_tensor_is_named_where_it_is_set(parity_here: ParityIn) -> None:
    """A package reads it in its update; the line that sets it is the user's."""
    verdict, (first, second, *_) = failed(parity_here(TRAINED), wrong_engines.CountsOn, FusedAdam)
    culprit = verdict.culprit
    assert culprit is not None, verdict.details
    assert culprit.where == f"{HERE.relative_to(Path.cwd())}:{marked(HERE, 'counter')}", second
    assert "step" in first
    assert culprit.kind == "setting"


def test_another_order_on_one_rank_alone_names_the_rank(
    verdict_on_ranks: Callable[[str, int], Verdict],
) -> None:
    """The rank whose sum is in another order is named, and not the collective after it."""
    verdict = verdict_on_ranks("AddsFromTheEndOnOneRank", 2)
    culprit = verdict.culprit
    assert culprit is not None, verdict.details
    assert (culprit.kind, culprit.rank) == ("order", 1), culprit.text
    assert "the reference adds the same values in another order" in culprit.text


def test_what_differs_and_what_made_it_are_one_text(parity_here: ParityIn) -> None:
    """The factor of the tensor and, once, the operation that scales it follow each other."""
    verdict, lines = failed(parity_here(TRAINED), wrong_engines.ClipsFurther)
    assert verdict.divergence is not None
    assert verdict.culprit is not None
    assert "0.5 times the reference" in verdict.divergence.signature
    assert verdict.divergence.signature in lines[0]
    assert verdict.culprit.text in [line.strip() for line in lines[1:3]]
    assert all(verdict.culprit.text not in line for line in lines[3:])
