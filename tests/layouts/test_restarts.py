"""Loads in new processes and on other numbers of ranks: what agrees, and what only they find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from itertools import combinations

import planted
import pytest

from pytest_precision import Cell, Engine, Parity, ParityError, layouts, workloads
from pytest_precision.options import Settings
from pytest_precision.ranks import RankPool
from pytest_precision.trace.cache import TraceCache

ParityIn = Callable[[Cell], Parity]
LAYOUTS = ("adamw", "fsdp2", "distributed_optimizer")
TWO = Cell(world_size=2)


# By day, shards of FSDP2 are loaded by new processes in the next two tests.
@pytest.mark.parametrize(
    "layout", [pytest.param("fsdp2", marks=pytest.mark.nightly), "distributed_optimizer"]
)
def test_a_run_goes_on_in_new_processes(parity_in: ParityIn, layout: str) -> None:
    """What the layouts save is all that the next step reads; so a load and a restart agree."""
    cell = TWO.replace(sequence="train-eval-save-restart-train")
    verdict = parity_in(cell).check(
        getattr(layouts, layout),
        layouts.adamw,
        workload=workloads.moe,
        reference_cell=cell.replace(sequence="train-eval-save-load-train"),
    )
    assert verdict.observations > 300
    assert not set(verdict.left_out) - {"grad"}


@pytest.mark.parametrize(
    "pair",
    [
        # In CI, the two that are sharded read and write for each other.
        pytest.param(pair, marks=pytest.mark.nightly if "adamw" in pair else ())
        for pair in combinations(LAYOUTS, 2)
    ],
    ids="-".join,
)
def test_layouts_read_each_other_on_any_number_of_ranks(
    parity_in: ParityIn, pair: tuple[str, str]
) -> None:
    """Bit for bit, by either layout of a pair: from 2 ranks to 4, from 4 to 1, and from 1 to 2."""
    sequence = "train-save-swap@4-save-load@1-save-swap@2-eval-train"
    candidate, reference = (getattr(layouts, name) for name in pair)
    verdict = parity_in(TWO.replace(sequence=sequence)).check(
        candidate, reference, workload=workloads.mlp
    )
    assert verdict.observations > 200


def test_the_reference_may_stay_on_its_ranks(parity_in: ParityIn) -> None:
    """Moments of the same operation are compared; but not what every rank has of its own."""
    cell = TWO.replace(sequence="train-save-load@1-eval")
    verdict = parity_in(cell).check(
        layouts.fsdp2,
        layouts.adamw,
        workload=workloads.mlp,
        reference_cell=cell.replace(sequence="train-save-load-eval"),
    )
    assert verdict.left_out["rng"].endswith("the world sizes differ from load after step 1 on")


@pytest.mark.filterwarnings("ignore::pytest_precision.PrecisionLeakWarning")
@pytest.mark.parametrize(
    ("kind", "world_size", "passes", "fails", "words"),
    [
        (planted.CountsInAGlobal, 1, "load", "restart", "loss differs at step 2"),
        (planted.OneFileEach, 1, "load", "load@2", "FileNotFoundError"),
        (planted.SharesMoments, 2, "restart", "restart@1", "exp_avg differs after restart"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_a_load_cannot_find(
    parity_in: ParityIn, kind: type[Engine], world_size: int, passes: str, fails: str, words: str
) -> None:
    """It is in the processes, or right for as many ranks only as have saved."""
    candidate = partial(planted.planted, kind=kind)
    for operation in (passes, fails):
        cell = Cell(world_size=world_size, sequence=f"train-save-{operation}-train")
        parity = parity_in(cell)
        with nullcontext() if operation == passes else pytest.raises(ParityError, match=words):
            parity.check(candidate, layouts.adamw, workload=workloads.mlp)


def test_a_layout_that_cannot_reshard_is_refused(parity_in: ParityIn) -> None:
    """Before it trains, with its own reason."""
    parity = parity_in(TWO.replace(sequence="train2-save-load@1-train2"))
    words = "since each rank has a file of its own, but got one on 1, 2 ranks; leave @ out"
    with pytest.raises(ParityError, match=words):
        parity.check(
            partial(planted.planted, kind=planted.Fixed), layouts.adamw, workload=workloads.mlp
        )


def test_the_calling_process_is_not_new() -> None:
    """A restart in it would prove nothing; it is skipped with what to leave out."""
    cell = Cell(sequence="train-save-restart-train")
    with closing(RankPool("inline")) as ranks, closing(TraceCache()) as traces:
        parity = Parity("test", cell, Settings(device="cpu"), ranks, traces)
        words = r"--precision-ranks=inline, .* leave that option out"
        with pytest.raises(pytest.skip.Exception, match=words):
            parity.check(layouts.fsdp2, layouts.adamw, workload=workloads.mlp)
