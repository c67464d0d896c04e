"""Plant known defects into a candidate, to test whether a check notices them.

Each wraps methods of an engine, or hooks its optimizer's step, and so fits any layout. One that
changes nothing that is observed is equivalent to the candidate: it says nothing about the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from pytest_precision.engine.engine import Engine
from pytest_precision.engine.groups import gradient, updated_tensors
from pytest_precision.errors import NotPlantedError, expected_but_got
from pytest_precision.recorders.perturb.planting import (
    ParamGroup,
    around,
    around_step,
    gradients,
    round_to_bf16,
    scale_losses,
    with_numbers,
)

Plant = Callable[[Engine], None]


class Mutant(NamedTuple):
    """A known defect: the function that plants it into an engine, and advice if it goes unnoticed.

    Attributes:
        plant: puts it into an engine that has just been built.
        advice: what a workload or a criterion lacks that does not show it.
    """

    plant: Plant
    advice: str


MUTANTS: dict[str, Mutant] = {}
"""What is wrong, in words, to mutant, in the order in which they are tried."""


def _mutant(name: str, advice: str) -> Callable[[Plant], Plant]:
    def enter(plant: Plant) -> Plant:
        MUTANTS[name] = Mutant(plant, advice)
        return plant

    return enter


def planted(name: str, engine: Engine) -> None:
    """Plant the known defect of this name into an engine, such as doubled gradients.

    Raises:
        NotPlantedError: the engine does not take it, such as for an optimizer without hooks.
    """
    try:
        MUTANTS[name].plant(engine)
    except Exception as error:
        raise NotPlantedError(
            expected_but_got(
                f"an engine that takes the planted defect {name!r}",
                f"{type(error).__name__}: {error}",
                "derive its optimizer from torch.optim.Optimizer, or leave --precision-mutate out",
            )
        ) from error


@_mutant("every gradient is doubled", "compare grad, reduced_grad or grad_norm more closely")
def _double(engine: Engine) -> None:
    scale_losses(engine, lambda _: 2.0)


@_mutant("the last microbatch of a step is left out", "compare grad or reduced_grad more closely")
def _leave_out(engine: Engine) -> None:
    def factor(step: int) -> float:
        return float(engine.microbatch + 1 < len(engine.workload.microbatches(engine.cell, step)))

    scale_losses(engine, factor)


@_mutant(
    "each microbatch counts alike, however many tokens it has",
    "give microbatches unequal numbers of tokens, and a step several of them",
)
def _mean_of_means(engine: Engine) -> None:
    def factor(step: int) -> float:
        microbatches = engine.workload.microbatches(engine.cell, step)
        tokens = engine.workload.tokens(microbatches[engine.microbatch])
        return engine.step_tokens / (len(microbatches) * tokens) if tokens else 1.0

    scale_losses(engine, factor)


@_mutant("gradients are rounded to bf16", "compare reduced_grad more closely than 1e-3")
def _round_gradients(engine: Engine) -> None:
    def round_all() -> None:
        for tensor in gradients(engine):
            round_to_bf16(tensor)

    around(engine, "reduce_grads", before=round_all)


@_mutant("one gradient is not summed over the ranks", "train on several ranks")
def _local_gradient(engine: Engine) -> None:
    def keep() -> Tensor:
        return gradients(engine)[0].clone()

    around(engine, "reduce_grads", before=keep, after=lambda copy: gradients(engine)[0].copy_(copy))


@_mutant(
    "gradients of the step before are added to those of a step",
    "train two steps, and compare reduced_grad more closely",
)
def _dirty(engine: Engine) -> None:
    left: list[Tensor] = []

    def add(_: object) -> None:
        accumulated = gradients(engine)
        fresh = [tensor.clone() for tensor in accumulated]
        for tensor, old in zip(accumulated, left, strict=False):
            tensor.add_(old)
        left[:] = fresh

    around(engine, "reduce_grads", after=add)


@_mutant("gradients are not clipped", "set max_norm below the norm of some step")
def _unclipped(engine: Engine) -> None:
    limit = engine.max_norm

    def set_limit(value: float | None) -> None:
        engine.max_norm = value

    around(engine, "clip_grads", before=lambda: set_limit(None), after=lambda _: set_limit(limit))


@_mutant(
    "gradients below the limit are scaled up to it", "set max_norm above the norm of some step"
)
def _scaled_up(engine: Engine) -> None:
    def scale() -> None:
        norm = float(engine.grad_norm)
        limit = engine.max_norm
        if limit is not None and 0 < norm < limit:
            for parameter in updated_tensors(engine.optimizer):
                read = gradient(engine.optimizer, parameter)
                if read is not None:
                    read.mul_(limit / norm)

    around_step(engine, before=scale)


@_mutant(
    "weight decay is left out",
    "give a group a weight decay above 0, or compare master more closely",
)
def _no_decay(engine: Engine) -> None:
    with_numbers(engine, lambda group: {"weight_decay": 0.0} if "weight_decay" in group else {})


@_mutant(
    "all groups have the learning rate of the first one",
    "give two groups different learning rates, or compare master more closely",
)
def _one_rate(engine: Engine) -> None:
    with_numbers(engine, lambda _: {"lr": engine.optimizer.param_groups[0]["lr"]})


@_mutant("the schedule is ignored", "give the workload a scheduler, or compare master more closely")
def _no_schedule(engine: Engine) -> None:
    with_numbers(engine, lambda group: {"lr": group.get("initial_lr", group["lr"])})


@_mutant("the second beta is 0.99", "compare exp_avg_sq, or train more steps")
def _other_beta(engine: Engine) -> None:
    def change(group: ParamGroup) -> ParamGroup:
        return {"betas": (group["betas"][0], 0.99)} if "betas" in group else {}

    with_numbers(engine, change)


@_mutant("steps are counted as one more", "compare step, or master more closely")
def _counted_more(engine: Engine) -> None:
    done: list[bool] = []

    def count(_: object) -> None:
        if not done:
            done.append(True)
            for state in engine.optimizer.state.values():
                if "step" in state:
                    state["step"] += 1
            for group in engine.optimizer.param_groups:
                if isinstance(group.get("step"), int):
                    group["step"] += 1

    around_step(engine, after=count)


@_mutant("weights are rounded to bf16 after each update", "compare master more closely than 1e-3")
def _round_weights(engine: Engine) -> None:
    def round_all(_: object) -> None:
        for parameter in updated_tensors(engine.optimizer):
            round_to_bf16(parameter.detach())

    around_step(engine, after=round_all)


@_mutant("the second moment is rounded to bf16", "compare exp_avg_sq more closely than 1e-3")
def _round_moments(engine: Engine) -> None:
    def round_all(_: object) -> None:
        for state in engine.optimizer.state.values():
            if isinstance(state.get("exp_avg_sq"), Tensor):
                round_to_bf16(state["exp_avg_sq"])

    around_step(engine, after=round_all)


@_mutant("one weight misses the second update", "train two steps, and compare master more closely")
def _missed(engine: Engine) -> None:
    steps = [0]

    def keep() -> Tensor | None:
        steps[0] += 1
        parameters = updated_tensors(engine.optimizer)
        return parameters[-1].detach().clone() if parameters and steps[0] == 2 else None

    def put_back(copy: Tensor | None) -> None:
        if copy is not None:
            updated_tensors(engine.optimizer)[-1].detach().copy_(copy)

    around_step(engine, before=keep, after=put_back)


@_mutant("weights that are not trained decay", "freeze a parameter")
def _decaying(engine: Engine) -> None:
    def decay(_: object) -> None:
        for parameter in engine.model.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.detach().mul_(0.999)

    around_step(engine, after=decay)


@_mutant("an evaluation leaves the model in evaluation mode", "evaluate between two train steps")
def _stays_in_eval(engine: Engine) -> None:
    around(engine, "evaluate", after=lambda _: engine.model.eval())


@_mutant("a load brings no first moments", "save, load and train two more steps")
def _no_moments(engine: Engine) -> None:
    def forget(_: object) -> None:
        for state in engine.optimizer.state.values():
            if isinstance(state.get("exp_avg"), Tensor):
                state["exp_avg"].zero_()

    around(engine, "load", after=forget)


@_mutant("a load starts the schedule anew", "give the workload a scheduler, save and load")
def _schedule_anew(engine: Engine) -> None:
    def keep(*_: object) -> tuple[Any, list[float]]:
        rates = [group["lr"] for group in engine.optimizer.param_groups]
        return engine.scheduler and engine.scheduler.state_dict(), rates

    def put_back(state_and_rates: tuple[Any, list[float]]) -> None:
        if engine.scheduler is not None:
            engine.scheduler.load_state_dict(state_and_rates[0])
            for group, rate in zip(engine.optimizer.param_groups, state_and_rates[1], strict=True):
                group["lr"] = rate

    around(engine, "load", before=keep, after=put_back)
