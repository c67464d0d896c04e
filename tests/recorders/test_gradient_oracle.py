"""What was judged once, or follows from what was computed, is not computed again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from package_probes import OF_ENGINES
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from wrong_gradients import Doubling, engine_of, frozen

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.probes.declared_rule.oracle.plan import UpdatePlan
from pytest_precision.probes.gradients import plain_sums
from pytest_precision.probes.gradients.gradient_log import GradientLog
from pytest_precision.probes.gradients.perturbed import GIVES_ZEROS
from pytest_precision.recorders.engine_recorder import record_engine
from pytest_precision.recorders.layout_job import Layout, LayoutJob
from pytest_precision.trace.moment import EVERYTHING

CELL = Cell(sequence="train2")


class DoublesLater(Doubling):
    """Multiplies the gradients of the second step by 2."""

    def forward_backward(self, step: int) -> None:
        (super() if step == 2 else super(Doubling, self)).forward_backward(step)


class Nudged(Engine):
    """Turns the lowest bit of one element of each weight after each update."""

    def optimizer_step(self) -> None:
        super().optimizer_step()
        for weight in self.model.parameters():
            weight.data.view(-1)[:1].view(torch.int32).bitwise_xor_(1)


class Experts(nn.Module):
    """Two experts, of which no token chooses the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen, self.idle = nn.Linear(8, 1, bias=False), nn.Linear(8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        none = x[:0]  # a gradient of zeros, not None
        return torch.cat([self.chosen(x), self.idle(none)])


class Idle(workloads.mlp):
    """Its second expert has a gradient of zeros."""

    def model(self, cell: Cell) -> nn.Module:
        return Experts()

    def microbatches(self, cell: Cell, step: int) -> list[Tensor]:
        return [torch.randn(4, 8, generator=torch.Generator().manual_seed(step))]

    def tokens(self, microbatch: Tensor) -> int:
        return 4

    def loss(self, model: nn.Module, microbatch: Tensor) -> tuple[Tensor, int]:
        return model(microbatch).square().sum(), 4


class Adding(Engine):
    """Adds `amount` to the first element of the idle expert's gradient."""

    amount: float

    def forward_backward(self, step: int) -> None:
        super().forward_backward(step)
        self.model.idle.weight.grad.view(-1)[0] += self.amount  # type: ignore[union-attr]


class Underflowing(Adding):
    """Has the smallest number above zero."""

    amount = 1e-45


class Invented(Adding):
    """Has a gradient that no token gives."""

    amount = 1e-9


class Wrapped(workloads.mlp):
    """Has a model with a block that is computed again in backward."""

    def model(self, cell: Cell) -> nn.Module:
        model = super().model(cell)
        blocks = model.get_submodule("blocks")
        blocks.register_module("1", checkpoint_wrapper(blocks.get_submodule("1")))
        return model


doubled, late, nudged = (partial(engine_of, kind=kind) for kind in (Doubling, DoublesLater, Nudged))


class Counted(workloads.mlp):
    """Counts its losses."""

    losses = 0

    def loss(self, model: nn.Module, microbatch: Any) -> tuple[Tensor, int]:
        Counted.losses += 1
        return super().loss(model, microbatch)


def judged(
    layout: Layout,
    folder: Path,
    known: GradientLog | None = None,
    workload: type[Workload] = workloads.mlp,
    cell: Cell = CELL,
) -> GradientLog:
    folder.mkdir()
    segment = cell.segments[0]
    record_engine(
        LayoutJob(
            *(layout, layout, workload, cell, folder, segment, EVERYTHING),
            other_log=known,
            probes=OF_ENGINES,
        )
    )
    return GradientLog.read(folder, 1)


class Row(nn.Linear):
    """Computes in the dtype of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Cancels(Workload):
    """Its gradients are its microbatches, two of which leave nothing but what bf16 has rounded."""

    def model(self, cell: Cell) -> nn.Module:
        return Row(64, 1, bias=False)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [*model.parameters()], "lr": 1e-3}]

    def microbatches(self, cell: Cell, step: int) -> list[Tensor]:
        large, small = torch.randn(2, 1, 64, generator=torch.Generator().manual_seed(step))
        return [large, small / 64, -large, small / 64]

    def tokens(self, microbatch: Tensor) -> int:
        return 1

    def loss(self, model: nn.Module, microbatch: Tensor) -> tuple[Tensor, int]:
        return model(microbatch).float().sum(), 1


def test_only_the_same_bits_are_not_judged_again(one_rank: None, tmp_path: Path) -> None:
    """What was found of a step is taken over, and wrong gradients are found all the same."""
    first = judged(layouts.adamw, tmp_path / "first")
    assert len(first.right) == 2
    assert sum(number for number, _ in first.right.values()) == first.judged
    known = GradientLog(right=dict.fromkeys(first.right, (7, 0.5)))
    again = judged(layouts.adamw, tmp_path / "again", known)
    assert (again.judged, again.worst, again.right) == (14, 0.5, known.right)
    wrong = judged(doubled, tmp_path / "wrong", known)
    assert wrong.breaches
    assert not wrong.right


def test_a_step_from_the_same_weights_is_not_computed_again(one_rank: None, tmp_path: Path) -> None:
    """Here the first one of two, after which weights have other bits."""
    first = judged(layouts.adamw, tmp_path / "first", workload=Counted)
    assert len(first.sums) == 2
    Counted.losses = 0
    alone = judged(nudged, tmp_path / "alone", GradientLog(), Counted)
    every, Counted.losses = Counted.losses, 0
    again = judged(nudged, tmp_path / "again", GradientLog(sums=first.sums), Counted)
    microbatches = len(workloads.mlp().microbatches(CELL, 1))
    assert Counted.losses == every - microbatches
    assert (again.judged, again.worst, again.right) == (alone.judged, alone.worst, alone.right)
    assert (alone.sums, again.sums) == ({}, {})


def test_wrong_gradients_of_a_known_step_are_explained(one_rank: None, tmp_path: Path) -> None:
    """In the words that they have where nothing is known."""
    first = judged(layouts.adamw, tmp_path / "first")
    alone = judged(doubled, tmp_path / "alone", GradientLog())
    again = judged(doubled, tmp_path / "again", GradientLog(sums=first.sums))
    assert again.breaches == alone.breaches != []


def test_sums_that_cannot_be_kept_or_read_are_computed(
    one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk takes no judgement away, and leaves no part of a file."""
    first = judged(layouts.adamw, tmp_path / "first")
    gone = GradientLog(sums=dict.fromkeys(first.sums, str(tmp_path / "gone.pt")))
    assert judged(doubled, tmp_path / "doubled", gone).breaches

    def full(data: object, file: Path) -> None:
        file.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    log = judged(layouts.adamw, tmp_path / "full")
    assert (log.judged, log.silent, log.sums) == (first.judged, "", {})
    assert not [*tmp_path.glob("full/**/plain-*")]
    assert judged(frozen, tmp_path / "frozen").breaches


def test_sums_before_a_wrong_step_are_kept(one_rank: None, tmp_path: Path) -> None:
    """The other side starts its first step from the same."""
    log = judged(late, tmp_path / "late", cell=Cell(sequence="train3"))
    assert {found.step for found in log.breaches} == {2}
    assert len(log.sums) == 1


def test_few_sums_of_a_run_are_kept(
    one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its first steps; what more took would displace other references."""
    elements = sum(one.numel() for one in workloads.mlp().model(CELL).parameters())
    monkeypatch.setattr(plain_sums, "MOST_KEPT", elements)
    assert len(judged(layouts.adamw, tmp_path / "first").sums) == 1


def test_a_weight_without_a_gradient_is_wrong_where_the_workload_gives_one(
    one_rank: None, tmp_path: Path
) -> None:
    """Whether its step is computed or known; what both sides freeze, no comparison shows."""
    first = judged(layouts.adamw, tmp_path / "first")
    for number, known in enumerate((None, GradientLog(sums=first.sums))):
        (found,) = judged(frozen, tmp_path / f"frozen{number}", known).breaches
        assert (found.kind, found.name, found.words) == ("grad", "head.weight", "no rank has any")


def test_a_sum_that_cancels_is_right_by_its_bits(one_rank: None, tmp_path: Path) -> None:
    """Rounded to bf16 once a microbatch, as the side sums; what is no such sum is wrong."""
    cell = CELL.replace(precision="bf16", primary_weight="bf16")
    right = judged(layouts.adamw, tmp_path / "right", workload=Cancels, cell=cell)
    assert (right.judged, right.breaches, right.silent) == (12, [], "")
    wrong = judged(doubled, tmp_path / "wrong", workload=Cancels, cell=cell)
    assert [found.kind for found in wrong.breaches] == ["grad", "reduced_grad"]


@pytest.mark.parametrize("kind", [Underflowing, Invented])
def test_where_the_workload_gives_zeros_only_underflow_is_rounding(
    one_rank: None, tmp_path: Path, kind: type[Adding]
) -> None:
    found = judged(partial(engine_of, kind=kind), tmp_path / "side", workload=Idle)
    expected = [(kind, "idle.weight", GIVES_ZEROS) for kind in ("grad", "reduced_grad")]
    breaches = [(one.kind, one.name, one.words) for one in found.breaches]
    assert breaches == ([] if kind is Underflowing else expected)
    assert (found.judged > 0, found.silent) == (True, "")


def test_a_workload_whose_model_is_wrapped_is_judged(one_rank: None, tmp_path: Path) -> None:
    """By the names that engines show, gradients and updates alike."""
    right = judged(layouts.adamw, tmp_path / "right", workload=Wrapped)
    assert (right.judged > 0, right.breaches, right.silent) == (True, [], "")
    assert judged(doubled, tmp_path / "wrong", workload=Wrapped).breaches
    plans = (UpdatePlan(made(), made.optimizer_rule, CELL) for made in (Wrapped, workloads.mlp))
    wrapped, plain = ((own.groups, own.frozen) for own in plans)
    assert wrapped == plain
