"""Lost updates of real layouts: counted over shards, shown in the verdict, and judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    bitwise,
    layouts,
    unchecked,
    workloads,
)
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.probes.lost_updates.update_log import UpdateLog

ParityIn = Callable[[Cell], Parity]

SLOWLY = partial(workloads.mlp, depth=1, lr=1e-5)
"""Updates far below half a unit in the last place of most bf16 weights."""

BF16 = Cell("bf16", "bf16", sequence="train3")

ANYTHING = {
    "default": unchecked(reason="only lost updates are judged"),
    **dict.fromkeys(("lr", "rng"), bitwise()),
}
"""Agrees with everything that is trained at the same rates."""


def nadam(workload: Workload, cell: Cell) -> Engine:
    """An optimizer whose exact update is not known."""
    model = workload.model(cell)
    return Engine(workload, cell, model, torch.optim.NAdam(workload.groups(model)))


def log_of(parity: Parity, layout: Callable[..., Engine], folder: Path) -> UpdateLog:
    run = parity._alone(layout, SLOWLY, parity.cell, Terms.of(None))
    folder.mkdir()
    parity.ranks.run(run.cell.world_size, Side.record, run, str(folder), None)
    return UpdateLog.read(folder, run.cell.world_size)


def test_shards_add_up_to_the_replicated_figure(parity_there: ParityIn, tmp_path: Path) -> None:
    """On two ranks, replicas count once and shards count together."""
    parity = parity_there(Cell(sequence="train3", world_size=2))
    sharded = log_of(parity, layouts.fsdp2, tmp_path / "sharded")
    replicated = log_of(parity, layouts.adamw, tmp_path / "replicated")
    assert list(sharded.steps) == [1, 2, 3]
    for step, names in replicated.steps.items():
        assert sharded.steps[step].keys() == names.keys()
        for name, counts in names.items():
            own = sharded.steps[step][name]
            assert (own.updates, own.lost) == (counts.updates, counts.lost)
            assert own.exact == pytest.approx(counts.exact, rel=1e-12)
            assert own.error == pytest.approx(counts.error, rel=1e-12)


def test_a_failure_says_what_the_candidate_loses(parity_there: ParityIn) -> None:
    """A candidate without masters loses what the reference with masters keeps."""
    with pytest.raises(ParityError) as failure:
        parity_there(BF16).check(layouts.adamw, layouts.master_adamw, workload=SLOWLY)
    (line,) = [line for line in failure.value.verdict.details if "updates lost" in line]
    assert " % of updates lost in " in line
    assert line.endswith("(reference: 0 %)")


def test_a_failure_of_the_other_kind_says_nothing_of_it(parity_there: ParityIn) -> None:
    """A candidate that loses less than its reference has another defect."""
    with pytest.raises(ParityError) as failure:
        parity_there(BF16).check(layouts.master_adamw, layouts.adamw, workload=SLOWLY)
    assert "updates lost" not in str(failure.value)


def test_report_has_a_table_to_plot(parity_there: ParityIn) -> None:
    """Lists of plain numbers, as long as there are train steps, of a pass too."""
    verdict = parity_there(Cell(sequence="train2-eval-train2")).check(
        layouts.fsdp2, layouts.adamw, workload=SLOWLY
    )
    entry = json.loads(json.dumps(verdict.as_dict(), allow_nan=False))
    curves = entry["curves"]
    assert curves["step"] == [1, 2, 3, 4]
    assert list(curves) == ["step", "loss", "grad_norm", "lost_updates", "absorbed"]
    for column in list(curves.values())[1:]:
        assert column["candidate"] == pytest.approx(column["reference"])
        assert len(column["candidate"]) == 4
    assert all(loss > 1 for loss in curves["loss"]["candidate"][:3])  # the fourth step is quiet
    worst = entry["lost_updates"]["candidate"]["worst"]
    assert worst.keys() == {"name", "share", "share_by_size", "absorbed"}


def test_a_limit_fails_a_candidate_that_loses_more(parity_there: ParityIn) -> None:
    """Nothing else is compared, and the reason names tensor, share and step."""
    with pytest.raises(ParityError, match=r"% of the updates of \S+ lost by size") as failure:
        parity_there(BF16).check(
            layouts.adamw,
            layouts.master_adamw,
            workload=SLOWLY,
            criterion=ANYTHING,
            max_lost_updates=0.05,
        )
    verdict = failure.value.verdict
    assert verdict.outcome == "fail"
    assert "over max_lost_updates=0.05; the most at step" in verdict.reason
    assert verdict.lost_updates is not None
    assert verdict.lost_updates["candidate"]["share"] > 0.9
    assert verdict.lost_updates["reference"]["share"] < 0.01


def test_a_limit_passes_a_candidate_that_keeps_its_updates(parity_there: ParityIn) -> None:
    """The stored parameters of fp32 masters stand still as well, and do not count."""
    verdict = parity_there(BF16).check(
        layouts.master_adamw,
        layouts.adamw,
        workload=SLOWLY,
        criterion=ANYTHING,
        max_lost_updates=0.05,
    )
    assert verdict.outcome == "pass"


def test_a_limit_on_what_cannot_be_measured_is_vacuous(parity_there: ParityIn) -> None:
    """No figure is no proof."""
    with pytest.raises(ParityError, match="NAdam may have a formula of its own") as failure:
        parity_there(Cell(sequence="train2")).check(
            nadam, layouts.adamw, workload=SLOWLY, criterion=ANYTHING, max_lost_updates=0.5
        )
    assert failure.value.verdict.outcome == "vacuous"


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (5, ValueError),
        (-0.1, ValueError),
        (float("nan"), ValueError),
        ("5 %", TypeError),
        (True, TypeError),
    ],
)
def test_a_limit_is_a_share(parity_there: ParityIn, limit: object, error: type[Exception]) -> None:
    """Anything else is refused before anything runs."""
    with pytest.raises(error, match="expected a share from 0 to 1 but got max_lost_updates="):
        parity_there(BF16).check(
            layouts.adamw,
            layouts.master_adamw,
            workload=SLOWLY,
            max_lost_updates=limit,  # type: ignore[arg-type]
        )
