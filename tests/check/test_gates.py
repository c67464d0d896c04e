"""Gates have names, which reports and their documentation share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    close,
    layouts,
    ulp,
    unchecked,
    workloads,
)
from pytest_precision.check.failed_check import FAILURES
from pytest_precision.check.gate import gate
from pytest_precision.check.gate_order import ordered_gates
from pytest_precision.check.preconditions import PRECONDITIONS
from pytest_precision.check.repeat import repeats
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.baselines.kept_check import golden
from pytest_precision.probes.then.moved import TIME_GATES
from pytest_precision.registered import OF_PACKAGE
from pytest_precision.rollout.batch_invariance import batch_invariant
from pytest_precision.rollout.score_gates import STEPS

VERDICTS = Path(__file__).parents[2] / "docs" / "reference" / "verdicts.md"

ParityIn = Callable[[Cell], Parity]


@gate
def too_late(ruling: Ruling | None) -> Ruling | None:
    return ruling


def test_a_gate_signs_what_it_rules() -> None:
    """The name is that of the function, so that no gate can be without one."""
    ruling = too_late(Ruling(outcome="fail", reason="it is"))
    assert ruling is not None
    assert (ruling.gate, ruling.reason) == ("too_late", "it is")
    assert too_late(None) is None


def test_the_table_of_gates_is_that_of_the_code() -> None:
    """Each gate has its row in the documentation, in the order in which they are asked."""
    table = VERDICTS.read_text().partition("## Gates")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    before = (*PRECONDITIONS, *FAILURES.values())
    after = (*TIME_GATES, repeats, golden, *STEPS, batch_invariant)
    ordered = [gate.spec.name for gate in ordered_gates(OF_PACKAGE.probes)]
    assert documented == [*names(before), *ordered, *names(after)]


def names(gates: Iterable[Callable[..., Any]]) -> list[str]:
    """The names of gates."""
    return [function.__name__ for function in gates]


def doubled(workload: Any, cell: Cell) -> Any:
    """A layout with another learning rate."""
    engine = layouts.adamw(workload, cell)
    engine.optimizer.param_groups[0]["lr"] *= 2
    return engine


def unmade(workload: Any, cell: Cell) -> Any:
    """A layout that cannot be made."""
    raise OSError("no such file")


@pytest.mark.parametrize(
    ("candidate", "outcome", "name"),
    [
        (layouts.adamw, "vacuous", "distinct"),
        (doubled, "fail", "agreement"),
        (unmade, "error", "recorded"),
    ],
)
def test_a_verdict_names_its_gate(
    parity_there: ParityIn, candidate: Any, outcome: str, name: str
) -> None:
    """Who reads the verdict, or report.json, need not read its reason."""
    with pytest.raises(ParityError) as raised:
        parity_there(Cell(sequence="train1")).check(
            candidate, layouts.adamw, workload=workloads.mlp
        )
    verdict = raised.value.verdict
    assert (verdict.outcome, verdict.status, verdict.gate) == (outcome, outcome, name)
    assert verdict.as_dict()["gate"] == name


@pytest.mark.parametrize(
    ("criterion", "status"),
    [(None, "pass"), (ulp(1), "partial"), ({"grad": unchecked(reason="by design")}, "partial")],
)
def test_a_pass_names_no_gate_and_says_whether_it_is_whole(
    parity_there: ParityIn, criterion: Any, status: str
) -> None:
    """Whether a pass is bit for bit and of all kinds is decided here, once."""
    verdict = parity_there(Cell(sequence="train1")).check(
        layouts.adamw, again, workload=workloads.mlp, criterion=criterion
    )
    assert (verdict.outcome, verdict.status, verdict.gate) == ("pass", status, None)
    assert "gate" not in verdict.as_dict()


def again(workload: Any, cell: Cell) -> Any:
    """The same layout under a name of its own."""
    return layouts.adamw(workload, cell)


def test_what_a_side_cannot_show_is_no_choice_of_the_test(parity_there: ParityIn) -> None:
    """DDP shows no gradients of its ranks: the pass is whole, and says what was not compared."""
    verdict = parity_there(Cell(sequence="train1")).check(
        layouts.ddp, layouts.adamw, workload=workloads.mlp
    )
    assert "grad" in verdict.left_out
    assert verdict.status == "pass"


def made(workload: Any, cell: Cell, *, kind: type[Engine], **options: Any) -> Engine:
    """An engine of a class, with AdamW."""
    model = workload.model(cell)
    return kind(workload, cell, model, torch.optim.AdamW(workload.groups(model), **options))


class MovesInEval(Engine):
    """An evaluation moves a weight by less than the tolerance of the check."""

    def evaluate(self) -> None:
        super().evaluate()
        with torch.no_grad():
            next(iter(self.model.parameters())).add_(1e-6)


@pytest.mark.parametrize("disturbed", ["candidate", "reference"])
def test_either_side_may_be_disturbed(parity_there: ParityIn, disturbed: str) -> None:
    """Within a tolerance both agree, and what an operation leaves alone is held bit for bit."""
    sides = {side: partial(made, kind=Engine) for side in ("candidate", "reference")}
    sides[disturbed] = partial(made, kind=MovesInEval)
    parity = parity_there(Cell(sequence="train1-eval1"))
    with pytest.raises(ParityError) as failure:
        parity.check(**sides, workload=workloads.mlp, criterion=close(rtol=0, atol=1e-3))
    verdict = failure.value.verdict
    assert (verdict.gate, disturbed in verdict.reason) == ("undisturbed", True), verdict.reason


class HalvesMomentsOnSkip(Engine):
    """A step that is skipped forgets half of a moment."""

    def optimizer_step(self) -> None:
        state = next(iter(self.optimizer.state.values()), {})
        steps = float(state.get("step", 0))
        super().optimizer_step()
        if state and float(state["step"]) == steps:
            state["exp_avg"].mul_(0.5)


def test_a_skipped_step_leaves_moments_alone(parity_there: ParityIn) -> None:
    """Where both sides change them alike, each side by itself shows it."""
    halving = partial(made, kind=HalvesMomentsOnSkip)
    parity = parity_there(Cell("fp16", "fp32", sequence="train-skip-train"))
    with pytest.raises(ParityError, match="exp_avg") as failure:
        parity.check(partial(halving, foreach=False), halving, workload=workloads.mlp)
    assert failure.value.verdict.gate == "undisturbed"
