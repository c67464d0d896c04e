"""An update that is not by the rule of the workload fails, although both sides agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import wrong_rules

from pytest_precision import (
    Cell,
    Engine,
    Parity,
    ParityError,
    Workload,
    layouts,
    unchecked,
    workloads,
)
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.optim import FusedAdam
from pytest_precision.probes.declared_rule.oracle_findings import Broken
from pytest_precision.probes.declared_rule.oracle_log import Breach, OracleLog
from pytest_precision.probes.declared_rule.update_watcher import UpdateWatcher

ParityIn = Callable[[Cell], Parity]
Judged = Callable[..., OracleLog]

TRAIN = Cell(sequence="train3")
MLP = partial(workloads.mlp, depth=1)


@pytest.fixture
def judged(one_rank: None, tmp_path: Path) -> Judged:
    """What the oracle finds in three steps of a layout, in this process."""

    def judge(
        layout: Callable[..., Engine],
        workload: Callable[[], Workload] = MLP,
        cell: Cell = TRAIN,
        explains: bool = True,
        **options: object,
    ) -> OracleLog:
        made = workload()
        engine = layout(made, cell, **options)
        watcher = UpdateWatcher(made, cell, explains=explains)
        for step in range(1, 4):
            engine.forward_backward(step)
            for phase in STEP_PHASES[1:]:
                with watcher.around(engine, phase, step):
                    getattr(engine, phase)()
        watcher.write(tmp_path, 0)
        return OracleLog.read(tmp_path, 1)

    return judge


def both(parity: Parity, wrong: str, **options: object) -> object:
    sides = (partial(side, wrong=wrong) for side in (wrong_rules.here, wrong_rules.there))
    return parity.check(*sides, workload=MLP, **options)  # type: ignore[arg-type]


def test_the_right_rule_passes(parity_there: ParityIn) -> None:
    """What the package's own AdamW does not compute is judged too, and follows the rule."""
    verdict = both(parity_there(TRAIN), "")
    assert verdict.oracle["candidate"]["judged"] > 0
    assert verdict.oracle["candidate"]["worst"] < 1


def test_the_oracle_is_turned_off_with_a_reason(parity_there: ParityIn) -> None:
    """Then a wrong rule passes, and the verdict says why nothing was judged."""
    verdict = both(parity_there(TRAIN), "eps", oracle=unchecked(reason="eps in the root is ours"))
    silent = {"silent": "eps in the root is ours"}
    assert verdict.oracle["candidate"] == silent | {"gradients": silent}


def test_turning_it_off_needs_a_reason(parity_there: ParityIn) -> None:
    """A bare False would leave the reader of a report without one."""
    for wrong in (False, {"master": False}):
        with pytest.raises(TypeError, match=r"unchecked\(reason="):
            both(parity_there(TRAIN), "", oracle=wrong)


def test_a_kind_is_turned_off_by_itself(parity_there: ParityIn) -> None:
    """The others are judged; and the verdict says what is not."""
    meant = unchecked(reason="moments are ours")
    moments = {"exp_avg": meant, "exp_avg_sq": meant}
    verdict = both(parity_there(TRAIN), "bf16 m", oracle={**moments, "master": meant})
    off = verdict.oracle["candidate"]["off"]
    assert off == dict.fromkeys(("exp_avg", "exp_avg_sq", "master"), meant.reason)
    with pytest.raises(ParityError, match=r"exp_avg of .* exp_avg is rounded to bf16"):
        both(parity_there(TRAIN), "bf16 m", oracle={"master": meant, "exp_avg_sq": meant})
    with pytest.raises(ParityError, match=r"^test: master of .* eps is added inside the root"):
        both(parity_there(TRAIN), "eps", oracle=moments)


def test_a_kind_is_turned_off_for_some_tensors(parity_there: ParityIn) -> None:
    """By a pattern of names, as in a criterion."""
    head = {"master:head.*": unchecked(reason="the head has a rule of its own")}
    with pytest.raises(ParityError) as failure:
        both(parity_there(TRAIN), "eps", oracle=head)
    assert "master of head." not in str(failure.value).splitlines()[0]


def test_an_unknown_kind_is_refused(parity_there: ParityIn) -> None:
    """Nothing judges it; the message has the kinds that are judged."""
    with pytest.raises(
        ValueError, match=r"a key of oracle to be one of momentum_buffer, .* but got 'decision'"
    ):
        both(parity_there(TRAIN), "", oracle={"decision": unchecked(reason="of no use")})


def test_a_wrong_rule_explains_a_divergence(parity_there: ParityIn) -> None:
    """Where only the candidate follows it, the two differ, and the lines below say why."""
    candidate = partial(wrong_rules.here, wrong="l2")
    with pytest.raises(ParityError) as failure:
        parity_there(TRAIN).check(candidate, layouts.adamw, workload=MLP)
    told = [line for line in failure.value.verdict.details if "of the candidate is not" in line]
    assert "weight decay is part of the gradient (L2), not decoupled" in told[0]


def test_steps_before_a_load_count(parity_there: ParityIn) -> None:
    """The rule's step is that of the training, wherever its state was stored meanwhile."""
    verdict = both(parity_there(Cell(sequence="train2-save-train-load-train2")), "")
    assert verdict.oracle["candidate"]["unjudged"] == {}


def test_another_kind_of_optimizer_is_not_judged(judged: Judged) -> None:
    """A rule that the optimizer does not claim to follow cannot tell whether it is right."""
    log = judged(wrong_rules.torch_sgd)
    (reason,) = {*log.unjudged.values()}
    assert reason.startswith("SGD may have a formula of its own: known are AdamW, Adam, ")
    assert not log.judged


def test_decay_in_the_gradient_is_a_rule_of_its_own(judged: Judged) -> None:
    """Torch's Adam follows it; the catalogue has the decoupled one, which does not."""
    assert 0 < judged(wrong_rules.torch_adam, wrong_rules.WithL2).worst < 1


@pytest.mark.parametrize("cell", [TRAIN, Cell("bf16", "bf16")], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9, "dampening": 0.25},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
    ],
    ids=["momentum", "nesterov", "plain"],
)
def test_the_right_sgd_passes(judged: Judged, options: dict[str, float], cell: Cell) -> None:
    """That of torch, in the dtypes of its parameters."""
    workload = partial(wrong_rules.WithSgd, **options)
    log = judged(partial(wrong_rules.torch_sgd, **options), workload, cell)
    assert 0 < log.worst < 1
    assert (log.breaches, log.unjudged) == ([], {})


def test_a_number_that_is_not_the_workloads_is_named(judged: Judged) -> None:
    """The optimizer's options say so themselves."""
    apart = judged(wrong_rules.torch_sgd, wrong_rules.WithSgd).apart
    assert "the optimizer has momentum=0.0, the workload momentum=0.9" in apart["0"]


def test_a_clip_may_divide(judged: Judged) -> None:
    """By the norm over its limit, without the little that torch adds to it."""
    log = judged(wrong_rules.clipped, wrong_rules.Faint, how="divided")
    assert 0 < log.worst < 1
    assert log.breaches == []


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        (TRAIN, {}),
        (TRAIN, {"exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp16"}),
        (TRAIN, {"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}),
        (Cell("bf16", "bf16"), {"exp_avg_dtype": "bf16", "store_param_remainders": True}),
        (Cell("bf16", "bf16"), {"exp_avg_sq_dtype": "bf16", "master_weight_dtype": "fp16"}),
    ],
    ids=["fp32", "fp16", "fp8", "remainders", "fp16 masters"],
)
def test_the_arithmetic_of_fp32_kernels_passes(
    judged: Judged, cell: Cell, options: dict[str, object]
) -> None:
    """That of Transformer Engine, whose betas are fp32, in whatever it stores its state."""
    log = judged(layouts.fused_adam, cell=cell, **options)
    assert 0 < log.worst < 0.9
    assert (log.breaches, log.unjudged) == ([], {})


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (wrong_rules.LAMB, {}, "LAMB may have a formula of its own: known are AdamW, "),
        (torch.optim.NAdam, {}, "NAdam may have a formula of its own: known are AdamW, "),
        (torch.optim.Adafactor, {}, "Adafactor may have a formula of its own: known are AdamW, "),
        (torch.optim.AdamW, {"maximize": True}, "AdamW has maximize=True, which no known rule has"),
        (torch.optim.AdamW, {"amsgrad": True}, "AdamW has amsgrad=True, which no known rule has"),
        (
            FusedAdam,
            {"bias_correction": False},
            "FusedAdam has bias_correction=False, which no known rule has",
        ),
        (
            wrong_rules.AdamW,
            {"cautious": True},
            "AdamW has cautious=True, which no known rule has",
        ),
        (
            wrong_rules.Cautious,
            {},
            "Cautious overrides the step of AdamW, and has further options: caution",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_no_optimizer_is_held_to_the_rule_of_another(
    judged: Judged, kind: type, options: dict[str, bool], why: str
) -> None:
    """Its class and its options say which rule it has; its state is like that of others."""
    log = judged(partial(wrong_rules.other, kind=kind, **options))
    assert (log.judged, log.breaches) == (0, [])
    assert all(reason.startswith(why) for reason in log.unjudged.values())


def test_a_wrong_update_may_be_found_without_being_explained(judged: Judged) -> None:
    """As that of a mutant, which nobody reads about."""

    def named(breach: Breach) -> tuple[str, str]:
        return breach.kind, breach.name

    found, told = (judged(hastened, explains=explains) for explains in (False, True))
    assert [*map(named, found.breaches)] == [*map(named, told.breaches)] != []
    assert (found.fits, found.estimates) == (None, {})
    assert told.estimates != {}


class Hastens(Engine):
    """Steps its scheduler once more after each step, so that the warm-up ends early."""

    def optimizer_step(self) -> None:
        super().optimizer_step()
        self.scheduler.step()


def hastened(workload: Workload, cell: Cell) -> Engine:
    model = workload.model(cell)
    return Hastens(workload, cell, model, torch.optim.AdamW(workload.groups(model)))


def test_an_estimate_is_that_of_the_step_that_is_named(judged: Judged) -> None:
    """A rate that is wrong by another factor in each step is nearly right in the last one."""
    log = judged(hastened)
    words = Broken("candidate", log, log.breaches[0]).explanation
    assert words.startswith("the optimizer has lr=")
    assert words.endswith("as if the learning rate were 1.5 of it")
