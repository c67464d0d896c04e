"""Loops that keep the rules of every loop, and loops that break one; ranks import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision import Cell, script
from pytest_precision.recorders.scripts.script_recorder import Record

Loop = Callable[[], None]

BROKEN: dict[str, Loop] = {}
KEPT: dict[str, Loop] = {}


def broken(loop: Loop) -> Loop:
    """Enter a loop that breaks a rule."""
    BROKEN[loop.__name__] = loop
    return loop


def kept(loop: Loop) -> Loop:
    """Enter a loop that keeps them all."""
    KEPT[loop.__name__] = loop
    return loop


@script
def one(cell: Cell, record: Record, name: str) -> None:
    """Run a loop until the recorder ends it."""
    run(record, name)


@script
def other(cell: Cell, record: Record, name: str) -> None:
    """The same under another name."""
    run(record, name)


def run(record: Record, name: str) -> None:
    torch.manual_seed(0)
    with record():
        (BROKEN | KEPT)[name]()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def data() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(6, 5, generator=generator)


def of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def adamw(model: nn.Module, **options: Any) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


# --- broken -------------------------------------------------------------------------------------


@broken
def steps_twice() -> None:
    model = net()
    optimizer = adamw(model)
    for batch in data():
        optimizer.zero_grad()
        of(model, batch).backward()
        optimizer.step()
        optimizer.step()


@broken
def never_zeroed() -> None:
    model = net()
    optimizer = adamw(model)
    for batch in data():
        of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@broken
def zeroed_in_part() -> None:
    """Those of the head are left."""
    model = net()
    optimizer = adamw(model)
    for batch in data():
        model[0].zero_grad()
        of(model, batch).backward()
        optimizer.step()


@broken
def zeroed_at_first() -> None:
    """And accumulated over two microbatches in each step."""
    model = net()
    optimizer = adamw(model)
    optimizer.zero_grad()
    batches = data()
    while True:
        for _ in range(2):
            of(model, next(batches)).backward()
        optimizer.step()


class Overflows(nn.Module):
    """Has gradients that are infinite in each second call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = net(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.inner(x)
        return y * (torch.inf if self.calls % 2 == 0 else 1.0)


def scaler_of() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", growth_interval=2)


@broken
def steps_past_the_scaler() -> None:
    """It calls the optimizer's step itself, after the scaler has unscaled."""
    model, scaler = Overflows(), scaler_of()
    optimizer = adamw(model)
    for batch in data():
        optimizer.zero_grad()
        scaler.scale(of(model, batch)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update()


def clipped(scaler: torch.amp.GradScaler, optimizer: Optimizer, model: nn.Module) -> float:
    """Unscale and clip; return the norm before."""
    scaler.unscale_(optimizer)
    return float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))


@broken
def updates_the_scaler_before_the_step() -> None:
    """Which unscales once more then."""
    model, scaler = net(), scaler_of()
    optimizer = adamw(model)
    for batch in data():
        optimizer.zero_grad()
        scaler.scale(of(model, batch)).backward()
        clipped(scaler, optimizer, model)
        scaler.update()
        scaler.step(optimizer)
        scaler.update()


@broken
def unscales_each_microbatch() -> None:
    """And accumulates two of them."""
    model, scaler = net(), scaler_of()
    optimizer = adamw(model)
    batches = data()
    while True:
        optimizer.zero_grad()
        for last in (False, True):
            scaler.scale(of(model, next(batches))).backward()
            clipped(scaler, optimizer, model)
            if last:
                scaler.step(optimizer)
            scaler.update()


@broken
def decays_what_has_no_gradient() -> None:
    """A hook gives a gradient of zero to a weight without one, which is decayed by that."""
    model = nn.ModuleDict({"used": net(), "unused": nn.Linear(2, 2)})
    optimizer = adamw(model)

    def fill(optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for own in group["params"]:
                if own.grad is None:
                    own.grad = torch.zeros_like(own)

    optimizer.register_step_pre_hook(fill)
    for batch in data():
        optimizer.zero_grad()
        of(model["used"], batch).backward()
        optimizer.step()


# --- kept ---------------------------------------------------------------------------------------


def zeroing(zero: Callable[[nn.Module, Optimizer], object]) -> None:
    """Train, and zero gradients after each update."""
    model = net()
    optimizer = adamw(model)
    for batch in data():
        of(model, batch).backward()
        optimizer.step()
        zero(model, optimizer)


@kept
def gradients_written_by_hand() -> None:
    """Twice a step, as of two draws of an evolution strategy; no backward is there."""
    model = net()
    optimizer = adamw(model)
    for batch in data():
        of(model, batch).backward()
        for _ in range(2):
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, float(batch.sum()))
            optimizer.step()
        optimizer.zero_grad()


@kept
def gradients_written_to_their_data() -> None:
    """Which no version counts, as masters of fp16 weights get theirs; no backward is there."""
    model = net()
    optimizer = adamw(model)
    for batch in data():
        of(model, batch).backward()
        for number in range(2):
            for weight in model.parameters():
                weight.grad.data.copy_(torch.full_like(weight, float(batch.sum()) + number))
            optimizer.step()
        optimizer.zero_grad()


@kept
def two_optimizers_of_one_gradient() -> None:
    """Each of them reads it once, as where an average of weights has a rate of its own."""
    model = net()
    first, second = adamw(model), torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in data():
        first.zero_grad()
        of(model, batch).backward()
        first.step()
        second.step()


@kept
def to_none() -> None:
    zeroing(lambda model, optimizer: optimizer.zero_grad())


@kept
def in_place() -> None:
    zeroing(lambda model, optimizer: optimizer.zero_grad(set_to_none=False))


@kept
def by_the_model() -> None:
    zeroing(lambda model, optimizer: model.zero_grad(set_to_none=False))


@kept
def by_hand() -> None:
    zeroing(lambda model, optimizer: [p.grad.zero_() for p in model.parameters()])


@kept
def by_hand_in_data() -> None:
    zeroing(lambda model, optimizer: [p.grad.data.zero_() for p in model.parameters()])


@kept
def by_other_tensors() -> None:
    def put(model: nn.Module, optimizer: Optimizer) -> None:
        for own in model.parameters():
            own.grad = torch.zeros_like(own)

    zeroing(put)


@kept
def carried_on_purpose() -> None:
    """A part of the last gradient is the momentum of this one."""
    zeroing(lambda model, optimizer: [p.grad.mul_(0.9) for p in model.parameters()])


@kept
def in_a_buffer() -> None:
    """All gradients are views of one buffer, which is zeroed."""
    model = net()
    optimizer = adamw(model)
    buffer = torch.zeros(sum(own.numel() for own in model.parameters()))
    views = buffer.split([own.numel() for own in model.parameters()])
    for own, view in zip(model.parameters(), views, strict=True):
        own.grad = view.view_as(own)
    for batch in data():
        buffer.zero_()
        of(model, batch).backward()
        optimizer.step()


@kept
def accumulating() -> None:
    """Three microbatches make a step."""
    model = net()
    optimizer = adamw(model)
    for number, batch in enumerate(data(), 1):
        of(model, batch).backward()
        if number % 3 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()


@kept
def adversarial() -> None:
    """The backward of an attack comes first, on gradients that only then are zeroed."""
    model = net()
    optimizer = adamw(model)
    for batch in data():
        given = batch.clone().requires_grad_()
        of(model, given).backward()
        optimizer.zero_grad()
        of(model, batch + 0.1 * given.grad.sign()).backward()
        optimizer.step()


@kept
def a_generator_against_its_judge() -> None:
    """The maker's backward adds to gradients of the judge, which are zeroed before its own."""
    maker, judge = nn.Linear(5, 5), net()
    makes, judges = adamw(maker), adamw(judge)
    for batch in data():
        judges.zero_grad()
        (of(judge, batch) - of(judge, maker(batch).detach())).backward()
        judges.step()
        makes.zero_grad()
        of(judge, maker(batch)).backward()
        makes.step()


@kept
def zeroed_in_data_between_two() -> None:
    """The same, zeroed by the data."""
    maker, judge = nn.Linear(5, 5), net()
    makes, judges = adamw(maker), adamw(judge)
    for batch in data():
        for own in (*judge.parameters(), *maker.parameters()):
            if own.grad is not None:
                own.grad.data.zero_()
        (of(judge, batch) - of(judge, maker(batch).detach())).backward()
        judges.step()
        for own in maker.parameters():
            own.grad = None
        of(judge, maker(batch)).backward()
        makes.step()


@kept
def sharpness_aware() -> None:
    """The gradient at the weights moves them, and the one there is used."""
    model = net()
    optimizer = adamw(model)
    for batch in data():
        of(model, batch).backward()
        with torch.no_grad():
            moved = [0.05 * own.grad for own in model.parameters()]
            for own, move in zip(model.parameters(), moved, strict=True):
                own.add_(move)
        optimizer.zero_grad()
        of(model, batch).backward()
        with torch.no_grad():
            for own, move in zip(model.parameters(), moved, strict=True):
                own.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


@kept
def masters() -> None:
    """Copies in fp32 hold gradients that are overwritten, never zeroed."""
    model = net().bfloat16()
    copies = [own.detach().float().requires_grad_() for own in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=1e-2)
    for batch in data():
        of(model, batch.bfloat16()).backward()
        for own, copy in zip(model.parameters(), copies, strict=True):
            copy.grad = own.grad.float()
            own.grad = None
        optimizer.step()
        with torch.no_grad():
            for own, copy in zip(model.parameters(), copies, strict=True):
                own.copy_(copy)


@kept
def lbfgs() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for batch in data():

        def closure(batch: Tensor = batch) -> Tensor:
            optimizer.zero_grad()
            loss = of(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


@kept
def in_backward() -> None:
    """Each weight is updated as soon as its gradient is there."""
    model = net()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.1)

        def step(p: Tensor, own: Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for batch in data():
        of(model, batch).backward()


@kept
def scaled_and_skipped() -> None:
    """The scaler leaves out each second step; then it grows."""
    model, scaler = Overflows(), scaler_of()
    optimizer = adamw(model)
    for batch in data():
        optimizer.zero_grad()
        scaler.scale(of(model, batch)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


@kept
def large_norms_are_left_out() -> None:
    """An attack's backward comes before the gradients of a step left out are zeroed in place."""
    model, scaler = net(), scaler_of()
    optimizer = adamw(model)
    for number, batch in enumerate(data()):
        given = batch.clone().requires_grad_()
        scaler.scale(of(model, given)).backward()
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(of(model, batch)).backward()
        if clipped(scaler, optimizer, model) and number % 2:
            scaler.step(optimizer)
        scaler.update()


@kept
def looked_at_and_scaled_again() -> None:
    """The norm of each microbatch is looked at, and the scale multiplied back."""
    model, scaler = net(), scaler_of()
    optimizer = adamw(model)
    for number, batch in enumerate(data(), 1):
        scaler.scale(of(model, batch)).backward()
        if number % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            continue
        scaler.unscale_(optimizer)
        scaler.update()
        for own in model.parameters():
            own.grad.mul_(scaler.get_scale())


@kept
def scaled_and_repaired() -> None:
    """What is not finite is replaced on purpose."""
    model, scaler = Overflows(), scaler_of()
    optimizer = adamw(model)
    for batch in data():
        optimizer.zero_grad()
        scaler.scale(of(model, batch)).backward()
        scaler.unscale_(optimizer)
        for own in model.parameters():
            own.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        scaler.update()


def unused(**options: Any) -> None:
    """Train a part of a model; another part is frozen, or has no gradient."""
    model = nn.ModuleDict({"used": net(), "unused": nn.Linear(2, 2), "frozen": nn.Linear(2, 2)})
    model["frozen"].requires_grad_(False)
    optimizer = adamw(model, weight_decay=0.1, **options)
    for batch in data():
        optimizer.zero_grad()
        of(model["used"], batch).backward()
        optimizer.step()


@kept
def unused_weights() -> None:
    unused()


@kept
def unused_weights_fused() -> None:
    unused(fused=True)


@kept
def unused_weights_foreach() -> None:
    unused(foreach=True)


@kept
def written_to_but_not_moved() -> None:
    """A hook clamps all weights, which leaves most as they are."""
    model = nn.ModuleDict({"used": net(), "unused": nn.Linear(2, 2)})
    optimizer = adamw(model)

    def clamp(optimizer: Optimizer, *_: Any) -> None:
        with torch.no_grad():
            for own in model.parameters():
                own.clamp_(-10.0, 10.0)

    optimizer.register_step_post_hook(clamp)
    for batch in data():
        optimizer.zero_grad()
        of(model["used"], batch).backward()
        optimizer.step()


class Decays(torch.optim.SGD):
    """Decays all weights, by a rule of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for own in group["params"]:
                own.mul_(0.99)
        return super().step(closure)


@kept
def an_optimizer_of_its_own() -> None:
    model = nn.ModuleDict({"used": net(), "unused": nn.Linear(2, 2)})
    optimizer = Decays(model.parameters(), lr=0.1)
    for batch in data():
        optimizer.zero_grad()
        of(model["used"], batch).backward()
        optimizer.step()
