"""What an update should have been, and how much of it the weights show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_precision import Cell, Engine, Workload, workloads
from pytest_precision.engine.groups import gradient
from pytest_precision.errors import NotMeasurableError
from pytest_precision.optim import AnyPrecisionAdamW, FusedAdam
from pytest_precision.probes.declared_rule.update_watcher import UpdateWatcher
from pytest_precision.probes.lost_updates.measured import rule
from pytest_precision.probes.lost_updates.update_log import Counts, UpdateLog

Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def stepped(
    make: Make, dtype: torch.dtype = torch.float64, fading: float = 1.0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Exact update and actual one, fp64, of each of some steps on 1000 weights."""
    torch.manual_seed(1)
    parameter = nn.Parameter(torch.randn(1000).to(dtype))
    optimizer = make([parameter])
    for step in range(3):
        parameter.grad = (torch.randn(1000) * fading**step).to(dtype)
        group = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        before = effective(optimizer, parameter)
        grad = gradient(optimizer, parameter)
        assert grad is not None
        optimizer.step()
        own = rule(optimizer, group, parameter, grad)
        yield own.compute(before, *own.operands), effective(optimizer, parameter) - before


def effective(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor:
    weight = getattr(optimizer, "master", Tensor.detach)(parameter)
    return weight.double().clone()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.9, 0.5), amsgrad=True, maximize=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2).double(), betas=(0.8, 0.9), eps=1e-3),
        lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=1e-2, maximize=True),
        lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1, momentum=0.9, dampening=0.5),
        lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1, momentum=0.9, nesterov=True),
    ],
)
def test_in_fp64_the_exact_update_is_the_optimizers_own(make: Make) -> None:
    """Torch's fp64 arithmetic is exact to 1e-12 of the largest update."""
    for exact, actual in stepped(make, fading=0.1):
        rounding = 4 * torch.finfo(torch.float64).eps  # two roundings of weights below 4
        assert (exact - actual).abs().max() <= 1e-12 * actual.abs().max() + rounding


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "adam_w_mode": False},
        {"bias_correction": False},
        {"exp_avg_dtype": torch.bfloat16},
        {"exp_avg_dtype": torch.float16, "exp_avg_sq_dtype": torch.float16},
        {"exp_avg_dtype": torch.uint8, "exp_avg_sq_dtype": torch.uint8},
    ],
)
def test_moments_are_decoded_before_they_are_used(options: dict[str, object]) -> None:
    """Scaled and compressed moments give the update up to what compressing them changed."""
    for exact, actual in stepped(
        lambda p: FusedAdam(p, lr=1e-2, **options),  # type: ignore[arg-type]
        torch.float32,
    ):
        usable = exact.isfinite() & (exact.abs() < 0.1)  # fp8 makes 0 of small second moments
        error = (exact - actual)[usable].norm() / actual[usable].norm()
        assert error < (0.3 if torch.uint8 in options.values() else 5e-3)
        assert usable.sum() > 500


def test_a_compensated_weight_moves_by_the_exact_update() -> None:
    """AnyPrecision's parameter and compensation together lose next to nothing."""
    for exact, actual in stepped(lambda p: AnyPrecisionAdamW(p, weight_decay=0.0), torch.bfloat16):
        assert (exact - actual).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.optim.NAdam, "NAdam may have a formula of its own: known are AdamW, "),
        (torch.optim.Adagrad, "Adagrad may have a formula of its own"),
    ],
)
def test_an_unknown_formula_is_not_guessed(make: Make, words: str) -> None:
    """An optimizer with Adam's state and another update is not measured by Adam's."""
    with pytest.raises(NotMeasurableError, match=words):
        next(stepped(make))


def engine_of(
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    dtype: torch.dtype = torch.float32,
    lr: float = 1e-5,
) -> Engine:
    torch.manual_seed(1)
    workload: Workload = workloads.mlp(lr=lr)
    model = workload.model(Cell()).to(dtype)
    return Engine(workload, Cell(), model, optimizer(workload.groups(model)))


def measured(engine: Engine, folder: Path, steps: int = 3) -> UpdateLog:
    watcher = UpdateWatcher(engine.workload, Cell())
    for step in range(1, steps + 1):
        engine.forward_backward(step)
        engine.clip_grads()
        with watcher.around(engine, "optimizer_step", step):
            engine.optimizer_step()
    watcher.write(folder, 0)
    return UpdateLog.read(folder, 1)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("dtype", "least", "most"), [(torch.bfloat16, 0.9, 1.0), (torch.float32, 0.0, 0.01)]
)
def test_bf16_weights_lose_their_updates(
    tmp_path: Path, dtype: torch.dtype, least: float, most: float
) -> None:
    """At a learning rate of 1e-5 nearly all, and fp32 weights nearly none."""
    log = measured(engine_of(dtype=dtype), tmp_path)
    total = sum(log.totals().values(), Counts())
    assert least <= total.share <= most
    assert least <= total.lost_by_size <= most
    assert total.absorbed > 0.9 or dtype is torch.float32


def with_tensor_lr(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{**group, "lr": torch.tensor(group["lr"])} for group in groups])


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, with_tensor_lr])
def test_the_learning_rate_is_that_of_the_step(tmp_path: Path, optimizer: Any) -> None:
    """The scheduler has moved it on before the step is measured, a tensor in place."""
    engine = engine_of(optimizer, lr=1e-2)
    log = measured(engine, tmp_path)
    assert max(counts.absorbed for names in log.steps.values() for counts in names.values()) < 1e-3
    assert sum(log.steps[1].values(), Counts()).updates <= sum(
        p.numel() for p in engine.model.parameters()
    )


@pytest.mark.usefixtures("one_rank")
def test_the_effective_weight_decides(tmp_path: Path) -> None:
    """The bf16 parameters of a sound run stand still as often as those of a broken one."""

    class Effective(Engine):
        def effective(self, parameter: Tensor) -> Tensor:
            return self.optimizer.master(parameter)  # type: ignore[attr-defined,no-any-return]

    def fused(groups: list[dict[str, object]]) -> FusedAdam:
        return FusedAdam(groups, master_weights=True, store_param_remainders=True)

    engine = engine_of(fused, torch.bfloat16)
    stored = sum(measured(engine, tmp_path).totals().values(), Counts())
    engine.__class__ = Effective
    right = sum(measured(engine, tmp_path).totals().values(), Counts())
    assert stored.share > 0.9
    assert right.share < 0.01


class CountsLate(FusedAdam):
    """Gives its groups a count in the first step, as Transformer Engine's does."""

    def _step_group(self, group: dict[str, Any]) -> None:
        group.setdefault("step", 0)
        super()._step_group(group)


class GivesLate(Engine):
    """Gives the optimizer its gradients in the call that updates, as Megatron-core does."""

    fused_step = True

    def forward_backward(self, step: int) -> None:
        super().forward_backward(step)
        self.kept = [(p, p.grad) for p in self.model.parameters()]
        for parameter, _ in self.kept:
            parameter.grad = None

    def optimizer_step(self) -> None:
        for parameter, grad in self.kept:
            parameter.grad = grad
        self.clip_grads()
        super().optimizer_step()


@pytest.mark.usefixtures("one_rank")
def test_what_an_optimizer_gets_within_the_call_is_measured(tmp_path: Path) -> None:
    """Every update of every step, and by the exact one."""
    engine = engine_of(CountsLate, lr=1e-2)
    for group in engine.optimizer.param_groups:
        del group["step"]
    engine.__class__ = GivesLate
    watcher = UpdateWatcher(engine.workload, Cell())
    for step in (1, 2):
        engine.forward_backward(step)
        with watcher.around(engine, "optimizer_step", step):
            engine.optimizer_step()
    watcher.write(tmp_path, 0)
    log = UpdateLog.read(tmp_path, 1)
    assert (set(log.steps), log.unmeasured) == ({1, 2}, {})
    trained = {name for name, one in engine.model.named_parameters() if one.requires_grad}
    assert log.steps[1].keys() == trained
    assert max(counts.absorbed for names in log.steps.values() for counts in names.values()) < 1e-3


class UpdatesByAnother(Engine):
    """Updates by an optimizer of its own that shares groups and state, as a wrapper may."""

    fused_step = True

    def optimizer_step(self) -> None:
        other = torch.optim.AdamW(self.optimizer.param_groups)
        other.state = self.optimizer.state
        self.clip_grads()
        other.step()


class UpdatesInTurn(GivesLate):
    """Updates one group after the other, as DeepSpeed's ZeRO does."""

    def optimizer_step(self) -> None:
        for parameter, grad in self.kept:
            parameter.grad = grad
        self.clip_grads()
        groups = [
            {**group, "params": [one]}
            for group in self.optimizer.param_groups
            for one in group["params"]
        ]
        whole, self.optimizer.param_groups = self.optimizer.param_groups, []
        for group in groups:
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = whole


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", [UpdatesByAnother, UpdatesInTurn])
def test_updates_beside_the_step_of_all_groups_are_measured(
    tmp_path: Path, kind: type[Engine]
) -> None:
    """No step of the engine's own optimizer begins, or one for each group."""
    engine = engine_of(torch.optim.AdamW)
    engine.__class__ = kind
    log = measured(engine, tmp_path)
    assert log.unmeasured == {}
    trained = {name for name, one in engine.model.named_parameters() if one.requires_grad}
    assert log.steps[1].keys() == trained


@pytest.mark.usefixtures("one_rank")
def test_measuring_leaves_training_alone(tmp_path: Path) -> None:
    """The same bits with and without it, the generator's included."""
    measured(watched := engine_of(), tmp_path)
    plain = engine_of()
    for step in (1, 2, 3):
        plain.forward_backward(step)
        plain.clip_grads()
        plain.optimizer_step()
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("one_rank")
def test_a_step_that_overflows_is_not_measured(tmp_path: Path) -> None:
    """Nothing was to be updated, so nothing was lost."""
    engine = engine_of()
    engine.grad_norm = torch.tensor(float("inf"))
    watcher = UpdateWatcher(engine.workload, Cell())
    with watcher.around(engine, "optimizer_step", 1):
        engine.optimizer_step()
    watcher.write(tmp_path, 0)
    assert UpdateLog.read(tmp_path, 1) == UpdateLog()


@pytest.mark.usefixtures("one_rank")
def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    """By tensor, and without a figure."""
    log = measured(engine_of(torch.optim.NAdam), tmp_path)
    assert log.totals() == {}
    (reason,) = {*log.unmeasured.values()}
    assert reason.startswith("NAdam may have a formula of its own")


@pytest.mark.usefixtures("one_rank")
def test_elements_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    """A NaN in one weight does not hide what happens to the others."""
    engine = engine_of(dtype=torch.bfloat16)
    first = engine.model.get_parameter("reader.weight")
    with torch.no_grad():
        first.view(-1)[0] = float("nan")
    engine.max_norm = None
    watcher = UpdateWatcher(engine.workload, Cell())
    for parameter in engine.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with watcher.around(engine, "optimizer_step", 1):
        engine.optimizer_step()
    watcher.write(tmp_path, 0)
    log = UpdateLog.read(tmp_path, 1)
    assert log.steps[1]["reader.weight"].updates == first.numel() - 1
    assert log.steps[1]["reader.weight"].absorbed > 0


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_measuring_leaves_fp64_alone(tmp_path: Path, kind: type[torch.optim.Optimizer]) -> None:
    """A cast to fp64 copies nothing there, and what is computed in place would be the state."""
    watched, alone = engine_of(kind, torch.float64), engine_of(kind, torch.float64)
    watcher = UpdateWatcher(watched.workload, Cell())
    for step in (1, 2, 3):
        for engine in (watched, alone):
            engine.forward_backward(step)
            engine.clip_grads()
        with watcher.around(watched, "optimizer_step", step):
            watched.optimizer_step()
        alone.optimizer_step()
    for ours, theirs in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    states = (engine.optimizer.state_dict()["state"] for engine in (watched, alone))
    torch.testing.assert_close(*states, rtol=0, atol=0)
    watcher.write(tmp_path, 0)
    assert UpdateLog.read(tmp_path, 1).totals()
