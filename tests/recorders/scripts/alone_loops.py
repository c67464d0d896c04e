"""Loops that show by themselves what is wrong, and right ones beside them; ranks import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from pytest_precision import Cell, script
from pytest_precision.recorders.scripts.script_recorder import Record

Loop = Callable[[], None]

WRONG: dict[str, Loop] = {}
NOTED: dict[str, Loop] = {}
RIGHT: dict[str, Loop] = {}


def wrong(loop: Loop) -> Loop:
    """Enter a loop that a check fails by."""
    WRONG[loop.__name__] = loop
    return loop


def noted(loop: Loop) -> Loop:
    """Enter a loop that has a note."""
    NOTED[loop.__name__] = loop
    return loop


def right(loop: Loop) -> Loop:
    """Enter a loop of which nothing is said."""
    RIGHT[loop.__name__] = loop
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
        (WRONG | NOTED | RIGHT)[name]()


def data() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(6, 5, generator=generator)


class Block(nn.Module):
    """A model whose inner part may be computed again in backward."""

    def __init__(self, *inner: nn.Module, again: bool, **how: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(5, 8), *inner)
        self.out = nn.Linear(8, 3)
        self.again = again
        self.how = {"use_reentrant": False} | how

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(self.inner, x, **self.how) if self.again else self.inner(x)
        return self.out(inner)


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, microbatches: int = 1) -> None:
    optimizers = optimizers or (torch.optim.AdamW(model.parameters(), lr=1e-2),)
    batches = data()
    while True:
        for _ in range(microbatches):
            model(next(batches)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()


# --- batch norm ---------------------------------------------------------------------------------


@wrong
def counts_again_in_backward() -> None:
    train(Block(nn.BatchNorm1d(8), nn.ReLU(), again=True), microbatches=2)


@right
def counts_once() -> None:
    train(Block(nn.BatchNorm1d(8), nn.ReLU(), again=False), microbatches=2)


@right
def counts_two_halves_of_a_batch() -> None:
    norm = nn.BatchNorm1d(8)
    train(Block(norm, nn.ReLU(), nn.Linear(8, 8), norm, again=False))


class CountsInOnePass(nn.BatchNorm1d):
    """Moves its statistics in the pass that has gradients, and not in the one before it."""

    def forward(self, x: Tensor) -> Tensor:
        self.track_running_stats = torch.is_grad_enabled()
        kept = self.running_mean, self.running_var, self.num_batches_tracked
        if not torch.is_grad_enabled():
            self.running_mean = self.running_var = self.num_batches_tracked = None
        try:
            return super().forward(x)
        finally:
            self.running_mean, self.running_var, self.num_batches_tracked = kept


@right
def counts_in_backward_alone() -> None:
    model = Block(CountsInOnePass(8), again=True, use_reentrant=True)
    batches = data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    while True:
        model(next(batches).requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# --- gradients that nobody reads ----------------------------------------------------------------


@wrong
def lists_what_is_frozen_for_now() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW([{"params": trained}], lr=1e-2)
    model.requires_grad_(True)
    train(model, optimizer)


@noted
def leaves_the_first_layer_out() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    train(model, torch.optim.AdamW(model[2].parameters(), lr=1e-2))


@right
def freezes_the_first_layer() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    train(model, torch.optim.AdamW(model[2].parameters(), lr=1e-2))


@right
def has_two_rates() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    rates = ((0, 1e-2), (2, 4e-2))
    train(model, *(torch.optim.AdamW(model[n].parameters(), lr=rate) for n, rate in rates))


def updated_masters(*, copies_back: bool) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)
    for batch in data():
        model(batch.bfloat16()).float().square().mean().backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                if copies_back:
                    parameter.copy_(master)
        model.zero_grad()


@right
def updates_masters() -> None:
    updated_masters(copies_back=True)


@wrong
def never_copies_masters_back() -> None:
    updated_masters(copies_back=False)


# --- what an optimizer skips, what reaches no loss ----------------------------------------------


class Matrices(torch.optim.SGD):
    """Updates what has two dimensions, or is `all`."""

    def __init__(self, parameters: Any, *, all: bool) -> None:
        super().__init__(parameters, lr=1e-2)
        self.all = all

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and (self.all or parameter.ndim == 2):
                parameter.data.add_(parameter.grad, alpha=-1e-2)


@noted
def updates_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    train(model, Matrices(model.parameters(), all=False))


@right
def updates_by_its_data() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    train(model, Matrices(model.parameters(), all=True))


@right
def warms_up_from_zero() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    train(model, torch.optim.SGD(groups, lr=1e-2))


class TwoHeads(nn.Module):
    """Returns one head's result; adds the other's, by a factor, unless it drops it."""

    def __init__(self, factor: float | None, *, detached: bool = False) -> None:
        super().__init__()
        self.inner, self.out, self.further = nn.Linear(5, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.factor, self.detached = factor, detached

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        with torch.set_grad_enabled(not self.detached):
            further = self.further(hidden)
        return self.out(hidden) + (0 if self.factor is None else self.factor * further)


@noted
def drops_a_head() -> None:
    train(TwoHeads(None))


@right
def turns_a_head_off() -> None:
    train(TwoHeads(0.0))


@right
def looks_at_a_head() -> None:
    train(TwoHeads(None, detached=True))


@right
def trains_two_models_in_turn() -> None:
    first, second = nn.Linear(5, 5), nn.Linear(5, 3)
    optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (first, second)]
    for number, batch in enumerate(data()):
        for part in (first, second):
            part.zero_grad()
        hidden = first(batch)
        second(hidden.detach() if number % 2 else hidden).square().mean().backward()
        optimizers[number % 2].step()


# --- how far an update moves --------------------------------------------------------------------


class AdamW8bit(torch.optim.AdamW):
    """Adam whose second moment is rounded to steps of a share of the largest."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for state in self.state.values():
            second = state["exp_avg_sq"]
            step = second.max() / 255
            second.copy_((second / step).round() * step)


@wrong
def rounds_second_moments_to_zero() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = AdamW8bit(model.parameters(), lr=1e-2)
    for number, batch in enumerate(data()):
        scale = torch.ones(6, 5)
        scale[:, 0] = 1e-3 if number else 1e-2
        model(batch * scale).square().mean().backward()
        optimizer.step()
        model.zero_grad()


@wrong
def clips_to_nothing_before_muon() -> None:
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    optimizer = torch.optim.Muon(model.parameters(), lr=1e-2)
    for batch in data():
        model(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-13)
        optimizer.step()
        model.zero_grad()


@right
def clips_before_muon() -> None:
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    optimizer = torch.optim.Muon(model.parameters(), lr=1e-2)
    for batch in data():
        model(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        model.zero_grad()


class DecaysTwice(torch.optim.AdamW):
    """Decays the weights before Adam decays them, by a share that is no rate's."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.mul_(1 - 1e-2)
        super().step()


class DecaysTwiceAdamW(DecaysTwice):
    """The same under a name that says its rule."""


DecaysTwiceAdamW.__name__ = "AdamW"


def rows_without_gradient(kind: type[torch.optim.AdamW]) -> None:
    tokens, out = nn.Embedding(32, 8), nn.Linear(8, 3)
    model = nn.Sequential(tokens, out)
    optimizer = kind(model.parameters(), lr=1e-2, weight_decay=0.1)
    while True:
        model(torch.arange(6)).square().mean().backward()
        optimizer.step()
        model.zero_grad()


@wrong
def decays_by_more_than_its_rate() -> None:
    rows_without_gradient(DecaysTwiceAdamW)


@right
def decays_rows_without_gradient() -> None:
    rows_without_gradient(torch.optim.AdamW)


@right
def has_a_small_epsilon_and_a_spike() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    for number, batch in enumerate(data()):
        model(batch * 1000 ** (number % 2)).square().mean().backward()
        optimizer.step()
        model.zero_grad()


# --- draws in backward --------------------------------------------------------------------------


@wrong
def draws_its_masks_again() -> None:
    train(Block(nn.Dropout(0.5), again=True, preserve_rng_state=False))


@right
def keeps_its_masks() -> None:
    train(Block(nn.Dropout(0.5), again=True))


@right
def keeps_its_masks_reentrant() -> None:
    model = Block(nn.Dropout(0.5), again=True, use_reentrant=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in data():
        model(batch.requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# --- autograd functions -------------------------------------------------------------------------


class CarriesLoss(torch.autograd.Function):
    """Returns what it is given, and gives a second loss a gradient of 1."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return gradient, torch.ones(())


class Balanced(nn.Module):
    """Has a second loss, which the function carries."""

    def __init__(self, *, uses: bool) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.uses = uses

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        carried = CarriesLoss.apply(hidden, hidden.square().mean())
        if self.uses:
            hidden = carried
        del carried
        return self.out(hidden)


@wrong
def throws_a_loss_away() -> None:
    train(Balanced(uses=False))


@right
def carries_a_loss() -> None:
    train(Balanced(uses=True))


@right
def carries_a_loss_and_looks_at_it_once_more() -> None:
    model = Balanced(uses=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in data():
        model(batch)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# --- autocast -----------------------------------------------------------------------------------


@wrong
def casts_once_for_all_steps() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.autocast("cpu", torch.bfloat16):
        train(model)


@right
def casts_in_each_step() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for batch in data():
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(batch).float().square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@right
def casts_without_keeping() -> None:
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        train(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)))


@right
def casts_once_for_all_microbatches() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = data()
    while True:
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                model(next(batches)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# --- what ranks draw: two of them ---------------------------------------------------------------

OF_TWO_RANKS: dict[str, str] = {
    "masks_alike": "ranks drew the same random numbers for different data",
    "masks_apart": "",
    "masks_of_one_batch": "",
    "rows_drawn_by_all": "",
    "shares_of_two_permutations": "ranks take their shares of different permutations",
    "shares_of_one_permutation": "",
    "own_sampler_by_rank": "ranks take their shares of different permutations",
    "own_sampler_of_all": "",
    "own_rows_of_each_rank": "",
}
"""A loop of two ranks, and what is said of it."""


class OwnSampler(Sampler[int]):
    """Gives each rank its share of a permutation, as an own class does that torch knows not."""

    def __init__(self, rows: Tensor, rank: int, seed: int, *, shares: bool) -> None:
        self.rows, self.rank, self.seed, self.shares = rows, rank, seed, shares
        self.num_replicas, self.num_samples = 2, len(rows) // 2

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        if not self.shares:
            order = torch.randperm(self.num_samples, generator=generator)
            return iter((order * 2 + self.rank).tolist())
        return iter(torch.randperm(len(self.rows), generator=generator).tolist()[self.rank :: 2])


@script
def two_ranks(cell: Cell, record: Record, name: str) -> None:
    """Train with one mistake, or with none."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5 if "masks" in name else 0.0))
    torch.manual_seed(rank if name == "masks_apart" else 0)
    rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    seed = rank if name == "shares_of_two_permutations" else 0
    sampler: Sampler[Any] = DistributedSampler(rows, 2, rank, seed=seed)  # type: ignore[arg-type]
    if name.startswith("own"):
        seed = 0 if name == "own_sampler_of_all" else rank
        sampler = OwnSampler(rows, rank, seed, shares="sampler" in name)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with record():
        for batch in DataLoader(rows, batch_size=4, sampler=sampler):  # type: ignore[arg-type]
            if name == "rows_drawn_by_all":
                batch = torch.randn(8, 5)[rank::2]
            if name == "masks_of_one_batch":
                batch = rows[:4]
            wrapped(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@script
def two_other_ranks(cell: Cell, record: Record, name: str) -> None:
    """The same under another name."""
    two_ranks(cell, record, name)


# --- averages and schedules ---------------------------------------------------------------------


def averaged(record: Record, saves: str, *, resume: bool) -> None:
    """Train with an average, and save one of both."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    parts = {"average": average, "model": model}
    if resume:
        saved = torch.load(record.folder / "saved.pt")
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    batch = next(data())
    step = record.save_after or 0 if resume else 0
    with record():
        while True:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            step += 1
            if step == record.save_after:
                written = average.module if saves == "average" else model
                states = {"model": written.state_dict(), "average": average.state_dict()}
                torch.save(states, record.folder / "saved.pt")


def resumed(cell: Cell, record: Record, saves: str) -> None:
    """Go on from what was saved."""
    averaged(record, saves, resume=True)


@script(resume=resumed)
def saved_in_between(cell: Cell, record: Record, saves: str) -> None:
    """Train from the start."""
    averaged(record, saves, resume=False)


@right
def schedules_and_never_steps() -> None:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert schedule.last_epoch == 0
    train(model, optimizer)


# --- copies that outlive an update --------------------------------------------------------------


class Copying(nn.Module):
    """Reads a copy in bf16 of its weight, made anew in each forward or once in several."""

    def __init__(self, reads: int, *, through: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.copied = torch.empty(0)
        self.reads, self.read, self.through = reads, 0, through

    def forward(self, x: Tensor) -> Tensor:
        if self.read % self.reads == 0:
            source = self.weight if self.through else self.weight.detach()
            self.copied = source.bfloat16()
        self.read += 1
        return (x.bfloat16() @ self.copied.T).float()


@wrong
def keeps_its_copy() -> None:
    train(Copying(100))


@right
def copies_once_for_all_microbatches() -> None:
    train(Copying(2), microbatches=2)


@right
def learns_from_a_teacher_and_a_target() -> None:
    model, teacher = nn.Linear(5, 3), nn.Linear(5, 3)
    teacher.load_state_dict(model.state_dict())
    target = Copying(2, through=False)
    optimizer = torch.optim.AdamW([*model.parameters(), target.weight], lr=1e-2)
    slow = [parameter.detach().clone() for parameter in model.parameters()]
    average = torch.optim.swa_utils.AveragedModel(model)
    for number, batch in enumerate(data()):
        with torch.no_grad():
            wanted = teacher(batch) + target(batch) + average(batch)
        own = (batch.bfloat16() @ target.weight.bfloat16().T).float()
        (model(batch) + own - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        with torch.no_grad():
            for before, parameter in zip(slow, model.parameters(), strict=True):
                if number % 2:
                    parameter.copy_(before.lerp_(parameter, 0.5))


@right
def updates_twice_by_one_forward() -> None:
    first, second = nn.Linear(5, 8), nn.Linear(8, 3)
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-2) for part in (first, second)]
    for batch in data():
        outputs = second(first(batch))
        outputs.square().mean().backward(retain_graph=True)
        optimizers[0].step()
        outputs.mean().backward()
        optimizers[1].step()
        for part in (first, second):
            part.zero_grad()
