"""An update that is not by the rule of the workload fails, although both sides agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import wrong_rules

from pytest_precision import layouts, unchecked, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.errors import ParityError
from pytest_precision.matrix.cell import Cell

ParityIn = Callable[[Cell], Parity]

TRAIN = Cell(sequence="train3")


def both(parity: Parity, wrong: str, **options: object) -> object:
    sides = (partial(side, wrong=wrong) for side in (wrong_rules.here, wrong_rules.there))
    return parity.check(*sides, workload=workloads.mlp, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("eps", "eps is added inside the root"),
        ("l2", "weight decay is part of the gradient (L2), not decoupled"),
        ("full decay", "weight decay is scaled by the full learning rate, not by the step's"),
        ("no decay", "there is no weight decay"),
        ("uncorrected", "moments are not corrected for bias"),
        ("other group", "the learning rate is that of another parameter group"),
        ("step ahead", "steps are counted as one more than were made"),
        ("step behind", "steps are counted as one less than were made"),
        ("bf16 v", "the second moment is rounded to bf16"),
        ("fp16 v", "the second moment is rounded to fp16"),
        ("bf16 w", "the weight is rounded to bf16"),
    ],
)
def test_the_wrong_rule_of_both_sides_is_named(parity_in: ParityIn, wrong: str, words: str) -> None:
    """Two sides with one defect agree bit for bit; each is judged by the rule alone."""
    with pytest.raises(ParityError) as failure:
        both(parity_in(TRAIN), wrong)
    assert f"in both sides: {words}; " in str(failure.value).splitlines()[0]


def test_the_right_rule_passes(parity_in: ParityIn) -> None:
    """What the package's own AdamW does not compute is judged too, and follows the rule."""
    verdict = both(parity_in(TRAIN), "")
    assert verdict.oracle["candidate"]["judged"] > 0
    assert verdict.oracle["candidate"]["worst"] < 1


def test_the_oracle_is_turned_off_with_a_reason(parity_in: ParityIn) -> None:
    """Then a wrong rule passes, and the verdict says why nothing was judged."""
    verdict = both(parity_in(TRAIN), "eps", oracle=unchecked(reason="eps in the root is ours"))
    assert verdict.oracle["candidate"] == {"silent": "eps in the root is ours"}


def test_turning_it_off_needs_a_reason(parity_in: ParityIn) -> None:
    """A bare False would leave the reader of a report without one."""
    with pytest.raises(TypeError, match=r"unchecked\(reason="):
        both(parity_in(TRAIN), "", oracle=False)


def test_a_wrong_rule_explains_a_divergence(parity_in: ParityIn) -> None:
    """Where only the candidate follows it, the two differ, and the lines below say why."""
    candidate = partial(wrong_rules.here, wrong="l2")
    with pytest.raises(ParityError) as failure:
        parity_in(TRAIN).check(candidate, layouts.adamw, workload=workloads.mlp)
    told = [line for line in failure.value.verdict.details if "of the candidate is not" in line]
    assert "weight decay is part of the gradient (L2), not decoupled" in told[0]


def test_steps_before_a_load_count(parity_in: ParityIn) -> None:
    """The rule's step is that of the training, wherever its state was stored meanwhile."""
    verdict = both(parity_in(Cell(sequence="train2-save-train-load-train2")), "")
    assert verdict.oracle["candidate"]["unjudged"] == {}


def test_another_kind_of_optimizer_is_not_judged(parity_in: ParityIn) -> None:
    """A rule that the optimizer does not claim to follow cannot tell whether it is right."""
    sides = wrong_rules.sgd, wrong_rules.sgd_again
    verdict = parity_in(TRAIN).check(*sides, workload=workloads.mlp)
    reasons = set(verdict.oracle["candidate"]["unjudged"].values())
    assert reasons == {"SGD is no Adam: it has not all of lr, betas, eps, weight_decay"}


def test_a_norm_is_that_of_the_gradients_that_were_reduced(parity_in: ParityIn) -> None:
    """Two sides that leave out the same gradients agree; each contradicts itself."""
    sides = wrong_rules.half_the_norm, wrong_rules.half_the_norm_again
    with pytest.raises(ParityError, match=r"grad_norm at step 1 is .*, 0\.5 times that"):
        parity_in(TRAIN).check(*sides, workload=workloads.mlp)
