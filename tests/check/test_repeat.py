"""A layout has the same bits in each of its runs, or the first tensor that has not is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import unsteady

from pytest_precision import Cell, Parity, ParityError, layouts, workloads
from pytest_precision.check.repeat import further_runs
from pytest_precision.check.side import Side
from pytest_precision.ranks import ImportPath

ParityIn = Callable[[Cell], Parity]

CELL = Cell(sequence="train1")


def test_a_steady_layout_repeats(parity_in: ParityIn) -> None:
    """On the same ranks and on new ones with another hash seed, bit for bit."""
    verdict = parity_in(CELL).repeat(layouts.adamw, workload=workloads.mlp)
    assert (verdict.outcome, verdict.criterion) == ("pass", "the same bytes in 3 runs")
    assert verdict.observations > 10


@pytest.mark.parametrize(
    ("layout", "runs", "gate", "words"),
    [
        (
            unsteady.restless,
            2,
            "repeats",
            "does not repeat: master of temperature differs at step 1 after optimizer_step in run "
            "2 of 2, on the same ranks",
        ),
        (
            unsteady.by_hash,
            3,
            "repeats",
            "does not repeat: master of reader.weight differs before the first step in run 3 of 3, "
            "on new ranks with another hash seed",
        ),
        (unsteady.doubling, 2, "consistent", "in the layout"),
    ],
)
def test_what_is_wrong_is_named(
    parity_in: ParityIn, layout: Callable[..., object], runs: int, gate: str, words: str
) -> None:
    """Which run differs, where; and what each run does wrong alike is a failure, too."""
    with pytest.raises(ParityError) as failed:
        parity_in(CELL).repeat(layout, workload=workloads.mlp, runs=runs)
    verdict = failed.value.verdict
    assert (verdict.outcome, verdict.gate) == ("fail", gate)
    assert words in verdict.reason


def side(**environment: str) -> Side:
    layout, workload = ImportPath.of(layouts.adamw), ImportPath.of(workloads.mlp)
    cell = Cell(environment=tuple(environment.items()))
    return Side.of(layout, layout, workload, cell)


def told(
    own: Side, runs: int, threads: int | None, mode: str, *gpus: str
) -> dict[str, dict[str, str]]:
    """Return the words of each further run to what its ranks have declared."""
    made = further_runs(own, runs, threads, mode, gpus)
    return {run.words: dict(run.side.needs.environment.declared) for run in made}


def test_runs_differ_in_what_must_not_matter() -> None:
    """In the hash seed, the number of threads and the order of devices, each in turn."""
    assert told(side(), 3, 4, "reuse", "GPU-1", "GPU-2") == {
        "on the same ranks": {},
        "on new ranks with another hash seed": {"PYTHONHASHSEED": "3"},
        "on new ranks with 4 threads": {"OMP_NUM_THREADS": "4"},
        "on new ranks with the devices in reverse order": {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"},
    }


def test_what_the_test_sets_stays_as_it_is() -> None:
    """A seed of its own; and where ranks are never kept, no run says that they are."""
    own = {"PYTHONHASHSEED": "0"}
    assert told(side(**own), 3, None, "fresh") == {"on new ranks": own}
    assert told(side(), 3, None, "inline") == {"in the same process": {}}


def test_one_run_repeats_nothing(parity_in: ParityIn) -> None:
    """Numbers of runs and threads are whole, and large enough."""
    with pytest.raises(ValueError, match=r"expected an int from 2 but got runs=1 \(int\)"):
        parity_in(CELL).repeat(layouts.adamw, workload=workloads.mlp, runs=1)
    with pytest.raises(TypeError, match=r"expected an int from 1 but got threads='2' \(str\)"):
        parity_in(CELL).repeat(layouts.adamw, workload=workloads.mlp, threads="2")  # type: ignore[arg-type]
