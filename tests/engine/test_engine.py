"""The engine's phases on one rank, and what it shows after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from pytest_precision import Capture, Cell, Engine, layouts, workloads
from pytest_precision.engine import groups
from pytest_precision.engine.engine import STEP_PHASES

pytestmark = pytest.mark.usefixtures("one_rank")
CELL = Cell("fp32")


def adamw(**axes: Any) -> Engine:
    engine = layouts.adamw(workloads.mlp(), CELL.replace(**axes))
    engine.start(Capture())
    return engine


def step(engine: Engine, number: int) -> None:
    engine.capture.begin()
    engine.forward_backward(number)
    for phase in STEP_PHASES[1:]:
        getattr(engine, phase)()


def state(engine: Engine) -> dict[tuple[str, str], bytes]:
    return {
        (seen.kind, seen.name): seen.tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for seen in engine.observe("save", engine.capture)
    }


def kinds(engine: Engine, phase: str) -> Counter[str]:
    return Counter(seen.kind for seen in engine.observe(phase, engine.capture))


def test_gradients_do_not_depend_on_how_the_batch_is_split() -> None:
    """The sum over microbatches is that of one loss over all tokens of the step."""
    engine = adamw()
    engine.forward_backward(1)
    accumulated = [p.grad for _, p in engine.masters()]
    microbatches = engine.workload.microbatches(CELL, 1)
    losses = [engine.workload.loss(engine.model, microbatch) for microbatch in microbatches]
    total = sum(loss for loss, _ in losses) / sum(tokens for _, tokens in losses)
    direct = torch.autograd.grad(total, [p for _, p in engine.masters()])
    for one, other in zip(accumulated, direct, strict=True):
        # Two orders of six fp32 additions: 2 (n - 1) u of the sum of magnitudes.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_gradients_start_from_zero_at_every_step() -> None:
    """What an earlier step or an evaluation left behind is not added to."""
    engine = adamw()
    engine.forward_backward(1)
    first = [p.grad.clone() for _, p in engine.masters()]
    engine.forward_backward(1)
    assert all(
        torch.equal(one, p.grad) for one, (_, p) in zip(first, engine.masters(), strict=True)
    )


def test_clipping_bites() -> None:
    """After the phase, the gradients have the norm that the workload allows."""
    engine = adamw()
    engine.forward_backward(1)
    engine.clip_grads()
    assert engine.grad_norm > engine.max_norm
    clipped = nn.utils.get_total_norm([p.grad.double() for _, p in engine.masters()])
    # torch divides by norm + 1e-6, so that the result is a little below.
    assert clipped.item() == pytest.approx(engine.max_norm, rel=1e-4)


def test_each_phase_shows_what_it_can_have_changed() -> None:
    """One full step, phase by phase."""
    engine = adamw()
    parameters, trained = len(list(engine.model.parameters())), len(list(engine.masters()))
    assert trained < parameters
    engine.forward_backward(1)
    seen = kinds(engine, "forward_backward")
    assert seen == {"used_param": parameters, "loss": 6, "grad": trained}
    engine.reduce_grads()
    assert kinds(engine, "reduce_grads") == {"reduced_grad": trained}
    engine.clip_grads()
    assert kinds(engine, "clip_grads") == {"grad_norm": 1, "lr": trained}
    engine.optimizer_step()
    seen = kinds(engine, "optimizer_step")
    state = {"step", "exp_avg", "exp_avg_sq", "master", "param", "flag", "rng"}
    assert seen.keys() == state | {"decision", "margin"}
    assert (seen["exp_avg"], seen["param"]) == (trained, parameters)


def test_whatever_an_optimizer_keeps_is_observed() -> None:
    """State under names that nobody here has heard of, in containers and as plain numbers."""

    class Peculiar(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["curvature"] = {"pair": [parameter.detach() * 2, 7], "t": 0.5}

    workload = workloads.mlp()
    model = workload.model(CELL)
    engine = Engine(workload, CELL, model, Peculiar(workload.groups(model)))
    step(engine, 1)
    names = {
        seen.name
        for seen in engine.observe("optimizer_step", engine.capture)
        if seen.kind == "curvature"
    }
    first = next(name for name, _ in engine.masters())
    assert {f"{first}.pair.0", f"{first}.pair.1", f"{first}.t"} <= names


def test_state_that_no_tensor_shows_is_left_to_a_note() -> None:
    """What an optimizer keeps does not end a run; its name is for what was not compared."""
    engine = adamw()
    step(engine, 1)
    engine.optimizer.state[next(engine.model.parameters())]["note"] = "text"
    seen = engine.observe("optimizer_step", engine.capture)
    assert "note" not in {one.kind for one in seen}
    assert groups.unshown(engine.optimizer) == {
        "what is no tensor in note": "AdamW keeps a str there"
    }


def test_a_step_of_the_group_is_shown_where_the_parameter_has_none() -> None:
    """A framework may leave an old number in its groups when it loads."""
    engine = adamw()
    step(engine, 1)
    for group in engine.optimizer.param_groups:
        group["step"] = 7
    first = next(engine.model.parameters())
    counted = engine.optimizer.state[first].pop("step")
    seen = [o for o in engine.observe("optimizer_step", engine.capture) if o.kind == "step"]
    assert [float(one.tensor) for one in seen] == [*[float(counted)] * (len(seen) - 1), 7.0]


def test_a_weight_is_observed_where_it_is_used() -> None:
    """A forward that reads other weights than the resident ones is seen."""
    engine = adamw()
    stale = {name: p.detach() + 1 for name, p in engine.model.named_parameters()}

    class Stale(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any) -> Any:
            return torch.func.functional_call(self.module, stale, args)

    engine.forward_model = Stale(engine.model)
    engine.evaluate()
    used = {
        s.name: s.tensor
        for s in engine.observe("evaluate", engine.capture)
        if s.kind == "used_param"
    }
    assert all(torch.equal(used[name], tensor) for name, tensor in stale.items())


def test_what_a_layout_stores_together_is_observed_apart() -> None:
    """`logical` splits parameters, gradients and per-element state; each part has the step."""

    class Halves(Engine):
        def logical(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
            return [(f"{name}.{i}", half) for i, half in enumerate(tensor.tensor_split(2))]

    workload = workloads.mlp()
    model = workload.model(CELL)
    engine = Halves(workload, CELL, model, torch.optim.AdamW(workload.groups(model)))
    step(engine, 1)
    seen = kinds(engine, "optimizer_step")
    trained = len(list(engine.optimizer.state))
    assert seen["exp_avg"] == seen["master"] == 2 * trained
    assert seen["param"] == 2 * len(list(model.parameters()))
    assert seen["step"] == 2 * trained


class KnowsNames(Engine):
    """Looks a tensor up by the name that the model gives it."""

    def start(self, capture: Capture) -> None:
        self.table = {name: name for name, _ in self.model.named_parameters()}
        super().start(capture)

    def logical(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
        return [(self.table[name], tensor)]


def test_a_wrapper_adds_nothing_to_names() -> None:
    """A module that is compiled, or computed again in backward, is that of the other side."""
    workload = workloads.moe(experts=3)
    model, plain = workload.model(CELL), workload.model(CELL)
    for own in (model, plain):
        own.get_submodule("blocks.1").eval()
    blocks = model.get_submodule("blocks")
    # Its logits have weights, and it has a buffer; a whole block is traced for ten times as long.
    router = torch.compile(blocks.get_submodule("0.router"), backend="eager")
    blocks.get_submodule("0").register_module("router", router)
    blocks.register_module("1", checkpoint_wrapper(blocks.get_submodule("1")))

    def names(own: nn.Module) -> list[tuple[str, str]]:
        engine = KnowsNames(workload, CELL, own, torch.optim.AdamW(workload.groups(own)))
        engine.start(Capture())
        step(engine, 1)
        assert all(name in plain.state_dict() for name, _ in engine.named_buffers())
        shown = (engine.observe(phase, engine.capture) for phase in ("init", *STEP_PHASES))
        return [(one.kind, one.name) for one in chain.from_iterable(shown)]

    assert names(model) == names(plain)


class Counting(nn.Module):
    """A wrapper that saves a number of its own, as well as the module in it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, x: Tensor) -> Tensor:
        return self._orig_mod(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 7}


def test_what_a_wrapper_saves_is_seen() -> None:
    """Its module has its name, and takes nothing from it."""
    workload = workloads.mlp()
    model = workload.model(CELL)
    blocks = model.get_submodule("blocks")
    blocks.register_module("1", Counting(blocks.get_submodule("1")))
    engine = Engine(workload, CELL, model, torch.optim.AdamW(workload.groups(model)))
    engine.start(Capture())
    seen = {one.name: one.tensor for one in engine.observe("init", engine.capture)}
    assert seen["extra state.calls of blocks.1"].item() == 7


class Scaled(nn.Module):
    """A user's own module, whose child has a wrapper's name, and a weight beside it."""

    def __init__(self, weight: str) -> None:
        super().__init__()
        self._orig_mod = nn.Linear(3, 3)
        self.register_parameter(weight, nn.Parameter(torch.ones(3)))


class OtherNames(Engine):
    """Tells the two apart by names of its own."""

    def logical(self, name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
        return [(name.replace("_orig_mod", "linear"), tensor)]


@pytest.mark.parametrize(("weight", "kind"), [("scale", Engine), ("weight", OtherNames)])
def test_a_child_with_a_wrappers_name_may_be_a_users_own(weight: str, kind: type[Engine]) -> None:
    """If no weight beside it has the name of one in it, or the engine has other names for them."""
    model = nn.Sequential(Scaled(weight))
    optimizer = torch.optim.AdamW(model.parameters())
    kind(workloads.mlp(), CELL, model, optimizer).start(Capture())


def test_two_weights_of_one_name_are_refused() -> None:
    """Both are named, with the child that is no wrapper."""
    model = nn.Sequential(Scaled("weight"))
    engine = Engine(workloads.mlp(), CELL, model, torch.optim.AdamW(model.parameters()))
    words = (
        r"names .* but got 0\.weight and 0\._orig_mod\.weight, which are both 0\.weight without "
        r"_orig_mod; rename the child module _orig_mod, or its tensors"
    )
    with pytest.raises(ValueError, match=words):
        engine.start(Capture())


class CountsSteps(torch.optim.Optimizer):
    """Has no state, counts its steps in its group, and decays whatever the rate is."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for own in group["params"]:
                if own.grad is not None:
                    own.mul_(0.999).sub_(group["lr"] * own.grad)


def test_a_save_is_no_step_of_an_optimizer_without_state(tmp_path: Path) -> None:
    """Torch would make one to see which state there is, if the weights had no gradients."""
    workload = workloads.mlp()
    model = workload.model(CELL)
    optimizer = CountsSteps([own for own in model.parameters() if own.requires_grad])
    engine = Engine(workload, CELL, model, optimizer)
    engine.start(Capture())
    step(engine, 1)
    before = state(engine)
    engine.save(tmp_path)
    assert state(engine) == before
    assert optimizer.param_groups[0]["steps"] == 1


def test_a_gradient_that_cannot_be_put_back_stays(tmp_path: Path) -> None:
    """Torch refuses to assign one of another dtype, but not to exchange its data."""
    engine = adamw()
    step(engine, 1)
    engine.save(tmp_path)
    wide = next(own for own in engine.model.parameters() if own.grad is not None)
    assert wide.grad is not None
    wide.grad.data = wide.grad.data.double()
    engine.load(tmp_path)
    assert all(own.grad is not None for own in engine.model.parameters() if own.requires_grad)


def test_gradients_that_stand_when_it_loads_are_no_obstacle(tmp_path: Path) -> None:
    """As those in a flat buffer: torch by itself would leave the optimizer's state out."""
    saved, loaded = adamw(), adamw()
    step(saved, 1)
    saved.save(tmp_path)
    for parameter in loaded.model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    loaded.load(tmp_path)
    assert all(
        torch.equal(own["exp_avg"], kept["exp_avg"])
        for own, kept in zip(
            loaded.optimizer.state.values(), saved.optimizer.state.values(), strict=True
        )
    )
    assert loaded.optimizer.state
    assert all(p.grad is not None for p in loaded.model.parameters() if p.requires_grad)


def test_an_overflow_leaves_everything_as_it_was() -> None:
    """No moment, counter or learning rate moves, and the next step is what it would have been."""
    torch.manual_seed(0)
    engine = adamw()
    torch.manual_seed(0)
    straight = adamw()
    step(engine, 1)
    step(straight, 1)
    before = state(engine)
    engine.capture.overflow_factor = float("inf")
    step(engine, 2)
    engine.capture.overflow_factor = 1.0
    assert not torch.isfinite(engine.grad_norm)
    assert state(engine) == before
    step(engine, 2)
    step(straight, 2)
    assert state(engine) == state(straight)


def test_evaluation_changes_nothing() -> None:
    """Not a bit of the state that outlives a step, and the mode is back to training."""
    engine = adamw()
    step(engine, 1)
    before = state(engine)
    engine.evaluate()
    assert state(engine) == before
    assert engine.model.training


@pytest.mark.parametrize("layout", ["adamw", "ddp", "fsdp2", "master_adamw"])
def test_a_checkpoint_restores_every_bit(layout: str, tmp_path: Path) -> None:
    """A fresh engine with other weights takes over all that outlives a step, and goes on alike."""
    cell = Cell("bf16", "bf16")
    make = getattr(layouts, layout)
    saved = make(workloads.gpt(), cell)
    for number in (1, 2):
        step(saved, number)
    saved.save(tmp_path / "checkpoint")
    torch.manual_seed(99)
    fresh = make(workloads.gpt(), cell)
    fresh.load(tmp_path / "checkpoint")
    assert state(fresh) == state(saved)
    step(saved, 3)
    step(fresh, 3)
    assert state(fresh) == state(saved)


class WithClosure(Engine):
    """For an optimizer that computes losses by itself."""

    def update_weights(self) -> None:
        self.optimizer.step(lambda: torch.zeros(()))


def test_state_that_is_not_by_parameter_is_not_saved(tmp_path: Path) -> None:
    """LBFGS keeps all of it under its first parameter: torch would write it and not load it."""
    workload = workloads.mlp()
    model = workload.model(CELL)
    engine = WithClosure(workload, CELL, model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="but LBFGS needs a closure for its step"):
        engine.save(tmp_path)
    step(engine, 1)
    with pytest.raises(ValueError, match=r"LBFGS has state of 1 of \d+, not of reader\.weight; "):
        engine.save(tmp_path)


def test_the_state_of_another_models_optimizer_is_not_saved(tmp_path: Path) -> None:
    """A checkpoint has no name for it: torch ends in a KeyError without a word."""
    workload = workloads.mlp()
    other = torch.optim.AdamW(torch.nn.Linear(3, 2).parameters())
    engine = Engine(workload, CELL, workload.model(CELL), other)
    with pytest.raises(
        ValueError, match=r"but got AdamW with 2 others, of shapes \[2, 3\], \[2\];"
    ):
        engine.save(tmp_path)


def test_a_workload_that_miscounts_its_tokens_is_refused() -> None:
    """The divisor is known before the forward, so it must be the number that the loss counts."""

    class Miscounting(workloads.mlp):
        def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
            loss, tokens = super().loss(model, microbatch)
            return loss, tokens + 1

    engine = layouts.adamw(Miscounting(), CELL)
    with pytest.raises(ValueError, match=r"expected loss\(\) of microbatch 0 of step 1 to count"):
        engine.forward_backward(1)


@pytest.mark.parametrize("returns", [lambda a, n: a / n, lambda a, n: (a.expand(3), n)])
def test_a_loss_that_is_no_sum_with_its_tokens_is_refused(returns: Callable[..., Any]) -> None:
    """Many losses are means; the message says what a trainer of means returns."""

    class Mean(workloads.mlp):
        def loss(self, model: nn.Module, microbatch: Any) -> Any:
            return returns(*super().loss(model, microbatch))

    words = r"expected Mean\.loss\(\) to return \(sum, tokens\).* but got loss=.*return \(mean, 1\)"
    with pytest.raises(TypeError, match=words):
        layouts.adamw(Mean(), CELL).forward_backward(1)


class Uneven(workloads.mlp):
    """A workload whose third step has five microbatches, whoever is to share them."""

    def microbatches(self, cell: Cell, step: int) -> list[Any]:
        return super().microbatches(cell, step)[: 5 if step == 3 else None]


class InBackward(Engine):
    """An engine of a user's, with collectives in backward."""

    needs_even_shares = True


def test_too_few_microbatches_are_refused() -> None:
    """A rank without data would reduce nothing and hang the others."""
    engine = layouts.adamw(Uneven(), CELL)
    engine.data_parallel = (6, 7)
    with pytest.raises(ValueError, match="for each rank, so 7 or more, but got 5 in step 3"):
        engine.forward_backward(3)


def uneven(kind: type[Engine]) -> Engine:
    cell = CELL.replace(world_size=4)
    model = Uneven().model(cell)
    return kind(Uneven(), cell, model, torch.optim.AdamW(model.parameters()))


def test_uneven_shares_are_refused_where_ranks_would_wait() -> None:
    """All steps are looked at before the first one."""
    words = r"since InBackward has collectives .* but got 5 % 4 = 1 in step 3; make cell.microbatch"
    with pytest.raises(ValueError, match=words):
        uneven(InBackward).expect_even_shares()


def test_uneven_shares_are_taken_where_nobody_waits() -> None:
    """Whatever each rank has is divided by the tokens of all of them."""
    uneven(Engine).expect_even_shares()


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_layouts_that_reduce_in_backward_need_even_shares(layout: str) -> None:
    """As do those of the distributed optimizer that overlap communication with computation."""
    assert getattr(layouts, layout)(workloads.mlp(), CELL).needs_even_shares
    for option in ("overlap_grad_reduce", "overlap_param_gather"):
        made = layouts.distributed_optimizer(workloads.mlp(), CELL, **{option: True})
        assert made.needs_even_shares
    assert not layouts.distributed_optimizer(workloads.mlp(), CELL).needs_even_shares


def test_a_tensor_that_the_model_does_not_know_is_named_by_its_place() -> None:
    """An optimizer on tensors of its own is observed all the same."""
    workload = workloads.mlp()
    model = workload.model(CELL)
    own = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.AdamW([{"params": own[:1]}, {"params": own[1:]}])
    engine = Engine(workload, CELL, model, optimizer)
    assert [name for name, _ in engine.masters()] == [
        "param_groups.0.params.0",
        "param_groups.1.params.0",
    ]
