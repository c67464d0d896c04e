"""Unmodified loops as the two sides of a check: on real ranks, and what is told of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import pytest
import unchanged
from checked import ParityIn, failed
from torch import Tensor, nn

from pytest_precision import Cell, Parity, layouts, script, unchecked
from pytest_precision.recorders.scripts import loop_trace

pytestmark = pytest.mark.filterwarnings("error::pytest_precision.PrecisionLeakWarning")


@pytest.mark.parametrize(
    ("loop", "world_size"),
    [
        (unchanged.plain, 1),
        (unchanged.scaled, 1),
        (unchanged.adversarial, 1),
        (unchanged.ddp, 2),
        (unchanged.fsdp2, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_loop_agrees_with_itself(
    parity_shared: ParityIn, loop: Callable[..., None], world_size: int
) -> None:
    """Two recordings of one loop have the same bits, and leave nothing behind."""
    parity = parity_shared(Cell(sequence="train3", world_size=world_size))
    again = functools.partial(loop, planted="")
    assert parity.check(again, loop).observations > 100


def test_a_loop_agrees_with_itself_in_pytests_own_process(
    parity_by: Callable[..., Parity],
) -> None:
    """Where ranks run inline, in which a debugger stops, the loop shows the same tensors."""
    cell, seen = Cell(sequence="train2"), []
    for mode in ("inline", "reuse"):
        parity = parity_by(cell, ranks=mode)
        verdict = parity.check(partial(unchanged.plain, planted=""), unchanged.plain)
        seen.append(verdict.observations)
    assert seen[0] == seen[1] > 100


@pytest.mark.parametrize(
    ("planted", "where"),
    [
        ("wrong lr", (0, "init", "lr")),
        ("wrong divisor", (1, "forward_backward", "loss")),
        ("zero_grad forgotten", (2, "reduce_grads", "reduced_grad")),
        ("clip after step", (1, "clip_grads", "final_grad")),
        ("clip by value", (1, "clip_grads", "grad_norm")),
        ("weights not updated", (2, "optimizer_step", "master")),
    ],
)
def test_a_defect_is_found_where_it_first_shows(
    parity_there: ParityIn, planted: str, where: tuple[int, str, str]
) -> None:
    """The first divergence in causal order is the defect itself, not what follows from it."""
    candidate = partial(unchanged.plain, planted=planted)
    found = failed(parity_there(Cell(sequence="train3")), candidate, unchanged.plain).divergence
    assert found is not None
    assert (found.step, found.phase, found.kind) == where


def test_a_loop_that_clips_too_late_is_red_against_itself(parity_there: ParityIn) -> None:
    """What both sides do wrong is said of each."""
    both = partial(unchanged.plain, planted="clip after step")
    verdict = failed(parity_there(Cell(sequence="train2")), both, partial(both, scale=1.0))
    assert "gradients were clipped after the update of step 1 in the candidate" in verdict.reason


def test_ddp_and_fsdp2_are_compared_by_logical_tensors(parity_shared: ParityIn) -> None:
    """Shards are put together: what two wrappers compute alike is equal."""
    parity = parity_shared(Cell(sequence="train3", world_size=2))
    options = {"accumulated": 1, "planted": "no clip"}
    sides = (partial(loop, **options) for loop in (unchanged.fsdp2, unchanged.ddp))
    buffers = unchecked(reason="DDP broadcasts the buffers of rank 0")
    assert parity.check(*sides, criterion={"buffer": buffers}).outcome == "pass"


@script
def digested(cell: Cell, record: unchanged.Record, planted: str = "") -> None:
    """A loop under fully_shard that is recorded as a large one is."""
    small, loop_trace.SMALL_RUN = loop_trace.SMALL_RUN, 0
    try:
        unchanged.fsdp2(cell, record, planted)
    finally:
        loop_trace.SMALL_RUN = small


def test_digests_of_a_large_loop_say_where_it_parts(parity_shared: ParityIn) -> None:
    """A long run keeps digests of whole tensors; where they part, values are recorded."""
    parity = parity_shared(Cell(sequence="train2", world_size=2))
    broken = partial(digested, planted="zero_grad forgotten")
    found = failed(parity, broken, digested).divergence
    assert found is not None
    assert (found.step, found.kind) == (2, "reduced_grad")
    assert found.name in dict(unchanged.Net().named_parameters())


def test_a_layout_needs_a_workload(parity_there: ParityIn) -> None:
    """Only a script has its data with it."""
    with pytest.raises(
        TypeError, match=r"got workload=None .* both functions of \(cell, record\) with @script"
    ):
        parity_there(Cell()).check(unchanged.plain, layouts.adamw)


def test_updates_that_a_script_loses_are_counted(parity_there: ParityIn) -> None:
    """AdamW on bf16 parameters swallows updates; the verdict says so beside the divergence."""
    parity = parity_there(Cell(sequence="train4"))
    candidate = partial(unchanged.plain, planted="bf16 parameters")
    verdict = failed(parity, candidate, unchanged.plain)
    assert any(
        "of updates lost in" in line and "(reference: 0 %)" in line for line in verdict.details
    )


def test_a_limit_on_lost_updates_holds_for_scripts(parity_there: ParityIn) -> None:
    """What loses more than the limit fails, also against itself."""
    parity = parity_there(Cell(precision="bf16", primary_weight="bf16"))
    both = partial(unchanged.plain, planted="bf16 parameters")
    verdict = failed(parity, both, partial(both, scale=1.0), max_lost_updates=1e-6)
    assert "over max_lost_updates=1e-06" in verdict.reason


def test_an_engine_and_a_script_are_compared(parity_there: ParityIn) -> None:
    """Where both train the same model alike, only what the script cannot know is left out."""
    parity = parity_there(Cell(sequence="train4"))
    criterion = {
        "loss": unchecked(reason="a script does not number microbatches over all ranks"),
        "rng": unchecked(reason="an engine starts with the generator as it was before its model"),
    }
    verdict = parity.check(
        unchanged.of_workload, layouts.adamw, workload=unchanged.ClippedByTorch, criterion=criterion
    )
    assert {kind for kind in verdict.left_out if ":" not in kind} >= {"loss", "grad"}


class Fused(unchanged.Net):
    """Reads the weights of its head without calling it, as a fused loss does."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs)).relu()
        return nn.functional.linear(hidden, self.head.weight, self.head.bias)


@script
def headed(cell: Cell, record: unchanged.Record, fused: bool, stale: bool = False) -> None:
    """A loop whose head is called or not; a stale one has another element from step 2 on."""
    model = Fused() if fused else unchanged.Net()
    with record():
        for _ in unchanged.accumulating(model, 1000):
            if stale:
                model.head.weight.data[0, 0] += 1


@pytest.mark.parametrize("fused", [True, False])
def test_a_head_that_is_read_without_a_call_agrees(parity_there: ParityIn, fused: bool) -> None:
    """On either side; what was compared in its place is said."""
    sides = partial(headed, fused=fused), partial(headed, fused=not fused)
    verdict = parity_there(Cell(sequence="train3")).check(*sides)
    lacks = "candidate" if fused else "reference"
    words = f"no call of its module was seen in the {lacks}; the weight before the step"
    assert verdict.left_out is not None
    assert verdict.left_out["used_param of head.weight, head.bias"].startswith(words)


class Tied(nn.Module):
    """Has one weight under two names, and reads it by the second one with a call or without."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.first = nn.Linear(7, 3, bias=False)
        self.middle = nn.Linear(3, 7)
        self.head = nn.Linear(7, 3, bias=False)
        self.head.weight = self.first.weight
        self.fused = fused

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.middle(self.first(inputs)).relu()
        return nn.functional.linear(hidden, self.head.weight) if self.fused else self.head(hidden)


@script
def tied(cell: Cell, record: unchanged.Record, fused: bool) -> None:
    """A loop whose tied head is called or not."""
    model = Tied(fused)
    with record():
        for _ in unchanged.accumulating(model, 1000):
            pass


def test_a_tied_head_that_is_read_without_a_call_agrees(parity_there: ParityIn) -> None:
    """The weight that is compared in its place has another name."""
    verdict = parity_there(Cell(sequence="train3")).check(
        partial(tied, fused=True), partial(tied, fused=False)
    )
    assert verdict.left_out is not None
    assert "used_param of head.weight" in verdict.left_out


def test_a_stale_head_that_is_read_without_a_call_is_found(parity_there: ParityIn) -> None:
    """The update that left it is where it first shows."""
    sides = partial(headed, fused=True, stale=True), partial(headed, fused=False)
    found = failed(parity_there(Cell(sequence="train3")), *sides).divergence
    assert found is not None
    assert (found.step, found.kind, found.name) == (1, "master", "head.weight")
